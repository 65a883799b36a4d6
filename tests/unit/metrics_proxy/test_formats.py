"""Reading and writing both formats: parse∘render is the identity, and what is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict_openmetrics
from prometheus_client.parser import text_string_to_metric_families as strict_text

from metrics_proxy import render
from metrics_proxy.families import Family, Series
from metrics_proxy.parse import ParseError, Parser
from tests.unit.metrics_proxy.strategies import content, families, values, without_deadline


def read_strictly(openmetrics_page: str) -> None:
    list(strict_openmetrics(openmetrics_page))  # type: ignore[no-untyped-call]


def parse(text: str, openmetrics: bool = False) -> list[Family]:
    return Parser().parse(text, openmetrics=openmetrics).families


@given(families())
@without_deadline
def test_text_comes_back_as_it_was(found: list[Family]) -> None:
    page = render.text(found)
    again = parse(page)
    assert content(again) == content(found)
    assert render.text(again) == page
    list(strict_text(page))


@given(families())
@without_deadline
def test_openmetrics_comes_back_as_it_was(found: list[Family]) -> None:
    page = render.openmetrics(found)
    again = parse(page, True)
    assert values(again) == values(found)
    assert render.openmetrics(again) == page
    read_strictly(page)


@given(families())
@without_deadline
def test_both_formats_hold_the_same_series(found: list[Family]) -> None:
    assert values(parse(render.text(found))) == values(parse(render.openmetrics(found), True))


@given(families())
@without_deadline
def test_a_page_that_is_known_is_read_in_the_same_way(found: list[Family]) -> None:
    parser = Parser((("instance", "a"),))
    page = render.text(found)
    first = content(parser.parse(page, openmetrics=False).families)
    assert content(parser.parse(page, openmetrics=False).families) == first
    assert all('instance="a"' in key for key in first)


@given(st.text(max_size=200))
@without_deadline
def test_any_text_is_a_page_or_an_error(text: str) -> None:
    for openmetrics in (False, True):
        try:
            found = parse(text, openmetrics)
        except ParseError:
            continue
        assert values(parse(render.text(found))) == values(found)


@given(st.text("abe_{}=\"\\,# \n1.+-NaInf", max_size=60))
@settings(deadline=None, max_examples=200)
def test_any_likely_text_is_a_page_or_an_error(text: str) -> None:
    test_any_text_is_a_page_or_an_error.hypothesis.inner_test(text)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a b",
        "a 1 x",
        "a 1 1.5",
        "a 1 2 3",
        "a 1e999",
        "a 0x10",
        "a 1_0",
        "a.b 1",
        "1a 1",
        "a{b} 1",
        "a{b=} 1",
        "a{b='c'} 1",
        'a{b="c} 1',
        'a{b="c"',
        'a{,b="c"} 1',
        'a{b="c"d="e"} 1',
        'a{b="c",b="d"} 1',
        'a{b:c="d"} 1',
        '{b="c"} 1',
        '{"a.b"} 1',
        "# TYPE a",
        "# TYPE a number",
        "# TYPE a info",
        "<html>",
        '{"a": 1}',
        "\x00",
        "a\xa01",
    ],
)
def test_what_is_no_sample_refuses_the_page_with_the_line(line: str) -> None:
    with pytest.raises(ParseError, match=r"^line 2: "):
        parse(f"a 1\n{line}\nb 2\n")


@pytest.mark.parametrize(
    ("line", "series", "value"),
    [
        ("a 1", "a", "1"),
        ("  a \t 1  ", "a", "1"),
        ("a 1 1700000000000", "a", "1"),
        ("a 1 -1", "a", "1"),
        ("a{} 1", "a", "1"),
        ('a {b="c"} 1', 'a{b="c"}', "1"),
        ('a{b="c"}1', 'a{b="c"}', "1"),
        ('a{ b = "c" , } 1 5', 'a{b="c"}', "1"),
        ('a{b="} 5 # {"} 1', 'a{b="} 5 # {"}', "1"),
        (r'a{b="\"\\\n\x"} 1', r'a{b="\"\\\n\\x"}', "1"),
        ("a nan", "a", "NaN"),
        ("a +inf", "a", "+Inf"),
        ("a -Infinity", "a", "-Inf"),
        ("a 1.e5", "a", "1.e5"),
        ("a 1\r", "a", "1"),
    ],
)
def test_samples(line: str, series: str, value: str) -> None:
    ((found,),) = [family.samples for family in parse(f"{line}\n")]
    assert (repr(found[0]), found[1]) == (series, value)


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("", "ends with ''"),
        ("a 1\n", "ends with 'a 1'"),
        ("# EOF\na 1\n", "ends with 'a 1'"),
        ("a 1\n# EOF\nb 1\n# EOF\n", "line 2: '# EOF' is neither"),
        ("\n# EOF\n", "line 1: '' is no sample"),
        ("# a comment\n# EOF\n", "line 1"),
        ("# TYPE a untyped\n# EOF\n", "line 1: 'untyped' is no type"),
        ("a 1 # {b\n# EOF\n", "after the value"),
        ("a 1 1 1\n# EOF\n", "after the value"),
        ('a{__name__="b"} 1\n# EOF\n', "its name twice"),
    ],
)
def test_openmetrics_is_refused(page: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        parse(page, True)


def test_openmetrics_types_are_known_by_the_name_of_the_text_format() -> None:
    found = parse(
        "# TYPE a counter\na_total 1 # {b=\"c\"} 1 5.5\na_created 5\n# TYPE b info\nb_info{c=\"d\"} 1\n"
        "# TYPE c stateset\nc{c=\"on\"} 1\n# TYPE d gaugehistogram\nd_bucket{le=\"+Inf\"} 2\nd_gcount 2\nd_gsum 1\n"
        "# TYPE e_s gauge\n# UNIT e_s s\ne_s 1 1.5\n# TYPE f unknown\nf 1\n# TYPE g counter\ng 1\n# EOF",
        True,
    )
    assert {family.name: family.type for family in found} == {
        "a_total": "counter",
        "a_created": "gauge",
        "b_info": "info",
        "c": "stateset",
        "d": "gaugehistogram",
        "e_s": "gauge",
        "f": "unknown",
        "g": "counter",
    }
    page = render.openmetrics(found)
    assert "# TYPE a counter\na_total 1\na_created 5\n# TYPE b info\nb_info" in page
    assert "# TYPE e_s gauge\n# UNIT e_s s\n" in page
    assert "# TYPE g unknown\ng 1\n" in page
    read_strictly(page)
    text = render.text(found)
    assert "# TYPE b_info gauge" in text
    assert "# TYPE d_gsum untyped\nd_gsum 1\n" in text
    list(strict_text(text))


@pytest.mark.parametrize(
    ("page", "line"),
    [
        ("# TYPE a counter\na 1\n", "# TYPE a unknown"),
        ("# TYPE a_total counter\na_total -1\n", "# TYPE a_total unknown"),
        ("# TYPE a_total counter\na_total NaN\n", "# TYPE a_total unknown"),
        ("# TYPE a_total counter\na_total 1\n# TYPE a gauge\na 1\n", "# TYPE a_total unknown"),
        ("# TYPE a_total counter\na_total 1\n# TYPE a histogram\na_bucket{le=\"+Inf\"} 1\n", "# TYPE a_bucket unknown"),
        ("# TYPE a histogram\na_bucket{le=\"1\"} 1\na_count 1\na_sum 1\n", "# TYPE a_bucket unknown"),
        ("# TYPE a histogram\na_bucket{le=\"+Inf\"} 1\na_count 2\na_sum 1\n", "# TYPE a_bucket unknown"),
        ("# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\n", "# TYPE a_bucket unknown"),
        ("# TYPE a histogram\na_bucket{le=\"x\"} 2\n", "# TYPE a_bucket unknown"),
        ("# TYPE a histogram\na_sum 1\n", "# TYPE a_sum unknown"),
        ("# TYPE a summary\na{quantile=\"2\"} 1\na_sum 1\n", "# TYPE a unknown"),
        ("# TYPE a summary\na 1\n", "# TYPE a unknown"),
        ("# TYPE a summary\na{quantile=\"1\"} -1\na_sum 1\n", "# TYPE a unknown"),
    ],
)
def test_what_breaks_the_rules_of_openmetrics_is_unknown_there(page: str, line: str) -> None:
    found = parse(page)
    written = render.openmetrics(found)
    assert line in written
    read_strictly(written)
    assert values(parse(written, True)) == values(found)


def test_a_type_that_comes_late_or_twice() -> None:
    (family,) = parse('h_count 1\nh_bucket{le="+Inf"} 1\n# TYPE h histogram\nh_sum 1\n# TYPE h histogram\n')
    assert family.type == "histogram"
    assert [series.name for series, _ in family.samples] == ["h_bucket", "h_count", "h_sum"]
    page = Parser().parse("# TYPE a counter\na 1\n# TYPE a gauge\n", openmetrics=False)
    assert (page.families[0].type, page.retyped) == ("counter", {"a": 1})


@pytest.mark.parametrize("labels", ['{le="x"}', "", '{le=""}'])
def test_a_histogram_whose_buckets_have_no_bounds_is_none(labels: str) -> None:
    found = parse(f"# TYPE h histogram\nh_bucket{labels} 2\nh_sum 1\n# TYPE s summary\ns{labels} 1\ns_sum 2\n")
    assert [(family.name, family.type) for family in found] == [
        (name, "unknown") for name in ("h_bucket", "h_sum", "s", "s_sum")
    ]
    read_strictly(render.openmetrics(found))


def test_limits_of_samples() -> None:
    assert len(Parser(max_samples=2).parse("a 1\nb 1\n", openmetrics=False).families) == 2
    with pytest.raises(ParseError, match="line 3: there are more samples than max_samples"):
        Parser(max_samples=2).parse("a 1\nb 1\nc 1\n", openmetrics=False)


def test_added_labels_win_and_the_others_are_kept() -> None:
    (family,) = Parser((("model", "x"),)).parse('a{model="y",exported_model="z"} 1\n', openmetrics=False).families
    assert repr(family.samples[0][0]) == 'a{exported_model="y",exported_exported_model="z",model="x"}'


@pytest.mark.parametrize("line", ['a{b="' + "\\" * 200_001, "a{" + '"' * 200_001, "a" * 200_000, "a{b=" * 100_000])
def test_no_line_costs_more_than_its_length(line: str) -> None:
    # Otherwise it would go on until the test's own time is over.
    with pytest.raises(ParseError):
        parse(f"{line}\n")


def test_two_spellings_are_one_series() -> None:
    assert Series("a", (("b", "c"), ("d", ""))).key == Series("a", (("d", ""), ("b", "c"))).key == 'a{b="c"}'
