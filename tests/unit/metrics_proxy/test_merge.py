"""Sources together: nothing is lost without a reason that is counted."""

from hypothesis import given

from metrics_proxy.families import Family, count_samples
from metrics_proxy.merge import Merged, Policy, SourcePage, merge
from metrics_proxy.parse import Parser
from tests.unit.metrics_proxy.strategies import content, families, values, without_deadline


def page(source: str, text: str, bridge: bool = False) -> SourcePage:
    return SourcePage(source, Parser().parse(text, openmetrics=False).families, bridge)


def names(merged: Merged) -> set[str]:
    return set(values(merged.families))


@given(families("f"), families("g"), families("h"))
@without_deadline
def test_disjoint_sources_lose_nothing(one: list[Family], two: list[Family], three: list[Family]) -> None:
    sources = (one, two, three)
    merged = merge([SourcePage(str(i), found) for i, found in enumerate(sources)], {})
    assert content(merged.families) == {key: kept for found in sources for key, kept in content(found).items()}
    assert not merged.conflicts


@given(families("f"), families("f"))
@without_deadline
def test_whatever_collides_every_series_is_there_once_and_losses_are_counted(
    one: list[Family], other: list[Family]
) -> None:
    merged = merge([SourcePage("one", one), SourcePage("other", other)], {})
    keys = [series.key for family in merged.families for series, _ in family.samples]
    assert len(keys) == len(set(keys))
    assert len({family.name for family in merged.families}) == len(merged.families)
    kept = values(merged.families)
    assert {key: kept[key] for key in values(one)} == values(one) or merged.conflicts
    lost = count_samples(one) + count_samples(other) - len(keys)
    assert bool(lost) <= bool(merged.conflicts)


def test_two_types_of_one_family() -> None:
    merged = merge([page("a", "# TYPE x counter\nx 1\n"), page("b", '# TYPE x gauge\nx{l="2"} 2\n')], {})
    assert names(merged) == {"x{}"}
    assert merged.conflicts == {("x", "type"): 1, ("x", "dropped"): 1}
    assert merged.winners == {("x", "b"): "a"}


def test_a_family_without_a_type_joins_one_with() -> None:
    merged = merge([page("a", "x 1\n"), page("b", '# HELP x Help.\n# TYPE x gauge\nx{l="2"} 2\n')], {})
    assert names(merged) == {"x{}", 'x{l="2"}'}
    assert (merged.families[0].type, merged.families[0].help) == ("gauge", "Help.")
    assert not merged.conflicts


def test_a_family_that_is_named_like_a_part_of_another() -> None:
    histogram = '# TYPE h histogram\nh_bucket{le="+Inf"} 1\nh_count 1\nh_sum 1\n'
    merged = merge([page("a", histogram), page("b", '# TYPE h_count gauge\nh_count{l="2"} 2\n')], {})
    assert [family.name for family in merged.families] == ["h"]
    assert merged.conflicts == {("h_count", "type"): 1, ("h_count", "dropped"): 1}


def test_duplicates_are_counted_and_the_first_stays() -> None:
    merged = merge([page("a", 'x{a="1",b=""} 1\nx 3\n'), page("b", 'x{b="",a="1"} 2\ny 1\n')], {})
    assert values(merged.families) == {'x{a="1"}': 1, "x{}": 3, "y{}": 1}
    assert merged.conflicts == {("x", "duplicate"): 1}


BRIDGE = "# TYPE vllm:a counter\nvllm:a{model=\"m\"} 1\n# TYPE nv_b counter\nnv_b 1\n"
OWN = "# TYPE vllm:a counter\nvllm:a{model_name=\"m\"} 2\n"


def test_vllms_own_family_wins_over_the_bridge_whatever_the_order() -> None:
    for pages in ([page("t", BRIDGE, True), page("v", OWN)], [page("v", OWN), page("t", BRIDGE, True)]):
        merged = merge(pages, {})
        assert names(merged) == {'vllm:a{model_name="m"}', "nv_b{}"}
        assert merged.conflicts == {("vllm:a", "dropped"): 1}
        assert merged.winners == {("vllm:a", "t"): "v"}


def test_policies() -> None:
    pages = [page("t", BRIDGE, True), page("v", OWN), page("w", 'vllm:a{model_name="w"} 5\n')]

    def kept(policy: Policy) -> set[str]:
        return names(merge(pages, {"vllm:a": policy}))

    assert kept(Policy(prefer="t")) == {'vllm:a{model="m"}', "nv_b{}"}
    assert kept(Policy(prefer="w")) == {'vllm:a{model_name="w"}', "nv_b{}"}
    assert 'bridge:a{model="m"}' in kept(Policy(rename={"t": "bridge:a"}))
    assert 'vllm:a{model="m",via="t"}' in kept(Policy(relabel={"t": (("via", "t"),)}))
    # A source that does not have the family is no reason to drop the others'.
    assert len(names(merge(pages[1:2], {"vllm:a": Policy(prefer="t")}))) == 1
