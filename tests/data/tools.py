"""Thirty functions as real APIs have them, and one set of arguments for each: nested objects, enums, arrays, maps,
optional and nullable members, references, and functions without parameters."""

from typing import Any, NamedTuple


class Function(NamedTuple):
    parameters: dict[str, Any] | None
    arguments: dict[str, Any]

    def tool(self, name: str) -> dict[str, Any]:
        """As a request has it."""
        parameters = {} if self.parameters is None else {"parameters": self.parameters}
        return {"type": "function", "function": {"name": name, "description": f"Does {name}.", **parameters}}


def _object(required: str = "", /, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def _nullable(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": [kind, "null"], **more}


def _list(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_NUMBER = {"type": "number"}
_FLAG = {"type": "boolean"}
_DATE = {"type": "string", "format": "date"}
_TIME = {"type": "string", "format": "date-time"}
_ADDRESS = _object(
    "street city country", street=_TEXT, city=_TEXT, zip=_nullable("string"),
    country={"type": "string", "pattern": "^[A-Z]{2}$"},
)
_MONEY = _object("amount currency", amount=_NUMBER, currency={"enum": ["CHF", "EUR", "USD"]})


FUNCTIONS: dict[str, Function] = {
    "get_time": Function(None, {}),
    "list_servers": Function({"type": "object", "properties": {}}, {}),
    "get_weather": Function(
        _object(
            "city", city=_TEXT, days={"type": "integer", "minimum": 1, "maximum": 14},
            unit={"enum": ["celsius", "fahrenheit"]},
        ),
        {"city": "Zürich", "days": 3, "unit": "celsius"},
    ),
    "create_payment": Function(
        _object(
            "total customer", total=_MONEY, customer=_TEXT, capture=_FLAG,
            reference=_nullable("string", maxLength=35),
        ),
        {"total": {"amount": 12.5, "currency": "CHF"}, "customer": "cus_7", "capture": False, "reference": None},
    ),
    "refund_payment": Function(
        _object(
            "payment", payment=_TEXT, amount=_nullable("number"),
            reason={"enum": ["duplicate", "fraud", "requested", None]},
        ),
        {"payment": "pay_1", "amount": None, "reason": None},
    ),
    "create_event": Function(
        _object(
            "title start end",
            title=_TEXT, start=_TIME, end=_TIME, all_day=_FLAG,
            attendees=_list(_object("email", email={"type": "string", "format": "email"}, optional=_FLAG)),
            reminders=_list({"type": "integer", "minimum": 0}, maxItems=5),
            repeat={"anyOf": [_object("every unit", every=_COUNT, unit={"enum": ["day", "week"]}), {"type": "null"}]},
        ),
        {
            "title": 'Review: "Q3" {draft}', "start": "2025-11-03T09:00:00Z", "end": "2025-11-03T10:00:00Z",
            "all_day": False,
            "attendees": [{"email": "a@example.com", "optional": True}, {"email": "b@example.com"}],
            "reminders": [10, 60], "repeat": None,
        },
    ),
    "find_free_time": Function(
        _object(
            "people length", people=_list(_TEXT, minItems=1), length=_COUNT,
            within=_object(**{"from": _DATE, "to": _DATE}),
        ),
        {"people": ["ann", "bo"], "length": 30, "within": {"from": "2025-01-01", "to": "2025-01-31"}},
    ),
    "send_mail": Function(
        _object(
            "to subject body",
            to=_list({"type": "string", "format": "email"}), cc=_list({"type": "string", "format": "email"}),
            subject=_TEXT, body=_TEXT, attachments=_list(_object("name data", name=_TEXT, data=_TEXT)),
            importance={"enum": ["low", "normal", "high"]},
        ),
        {
            "to": ["a@example.com"], "cc": [], "subject": "Bonjour à tous",
            "body": "Line 1\n\n  <b>2</b> & \"3\"\n\tEnd 🌍",
            "attachments": [{"name": "a.txt", "data": "aGk="}], "importance": "normal",
        },
    ),
    "search_mail": Function(
        _object(
            "query", query=_TEXT, folder=_nullable("string"),
            limit={"type": "integer", "minimum": 1, "maximum": 100}, unread=_FLAG,
        ),
        {"query": "from:(bo OR ann) subject:\"offer\"", "folder": None, "limit": 20, "unread": True},
    ),
    "create_issue": Function(
        _object(
            "project title",
            project={"type": "string", "pattern": "^[A-Z]{2,10}$"}, title=_TEXT, body=_TEXT, labels=_list(_TEXT),
            priority={"type": "integer", "enum": [1, 2, 3]}, assignee=_nullable("string"),
        ),
        {
            "project": "GATE", "title": "Crash on `[]`", "body": "```py\nx = {}\nx['a']\n```\n",
            "labels": ["bug", "p1"],
            "priority": 1, "assignee": None,
        },
    ),
    "transition_issue": Function(
        _object(
            "key to", key=_TEXT, to={"enum": ["todo", "doing", "done"]},
            fields={"type": "object", "additionalProperties": _TEXT},
        ),
        {"key": "GATE-7", "to": "done", "fields": {"fix version": "1.2", "note": "see {ref}"}},
    ),
    "run_query": Function(
        _object(
            "sql", sql=_TEXT, parameters=_list({"type": ["string", "number", "boolean", "null"]}),
            timeout={"type": "number", "exclusiveMinimum": 0},
        ),
        {
            "sql": "SELECT '}' AS a, \"b\" FROM t WHERE x < $1 AND y = $2", "parameters": ["it's", 1.5, None, True],
            "timeout": 2.5,
        },
    ),
    "insert_rows": Function(
        _object("table rows", table=_TEXT, rows=_list({"type": "object"}), on_conflict={"enum": ["error", "skip"]}),
        {
            "table": "people", "rows": [{"id": 1, "name": "Ann", "tags": []}, {"id": 2, "name": None}],
            "on_conflict": "skip",
        },
    ),
    "filter_products": Function(
        {
            "type": "object",
            "properties": {"where": {"$ref": "#/$defs/filter"}, "page": _COUNT},
            "required": ["where"],
            "additionalProperties": False,
            "$defs": {
                "filter": {
                    "anyOf": [
                        _object("field is", field=_TEXT, **{"is": {"type": ["string", "number"]}}),
                        _object("all", all=_list({"$ref": "#/$defs/filter"})),
                    ]
                }
            },
        },
        {"where": {"all": [{"field": "size", "is": 42}, {"all": [{"field": "color", "is": "red"}]}]}, "page": 0},
    ),
    "create_order": Function(
        _object(
            "lines ship_to",
            lines=_list(
                _object(
                    "sku quantity", sku=_TEXT, quantity={"type": "integer", "minimum": 1}, note=_nullable("string"),
                ),
                minItems=1,
            ),
            ship_to=_ADDRESS, bill_to={"anyOf": [_ADDRESS, {"type": "null"}]}, gift=_FLAG,
        ),
        {
            "lines": [{"sku": "A-1", "quantity": 2, "note": None}, {"sku": "B]9}", "quantity": 1}],
            "ship_to": {"street": "Rue d'Or 1", "city": "Genève", "zip": "01201", "country": "CH"}, "bill_to": None,
            "gift": True,
        },
    ),
    "track_parcel": Function(
        _object("number", number={"type": "string", "pattern": "^[0-9]{10}$"}, carrier={"const": "post"}),
        {"number": "0012345678", "carrier": "post"},
    ),
    "plan_route": Function(
        _object(
            "stops", stops=_list(_object("lat lon", lat=_NUMBER, lon=_NUMBER, name=_TEXT), minItems=2),
            mode={"enum": ["car", "foot", "bike"]}, avoid=_list({"enum": ["toll", "ferry"]}),
            depart=_nullable("string"),
        ),
        {
            "stops": [{"lat": 47.3769, "lon": 8.5417}, {"lat": -33.86, "lon": 151.2094, "name": "Sydney"}],
            "mode": "foot", "avoid": ["toll"], "depart": None,
        },
    ),
    "search_flights": Function(
        _object(
            "from to date",
            **{"from": {"type": "string", "pattern": "^[A-Z]{3}$"}, "to": {"type": "string", "pattern": "^[A-Z]{3}$"}},
            date=_DATE, back=_nullable("string"), travellers=_object("adults", adults=_COUNT, children=_COUNT),
        ),
        {"from": "ZRH", "to": "OSL", "date": "2025-06-01", "back": None, "travellers": {"adults": 2, "children": 0}},
    ),
    "book_room": Function(
        _object(
            "hotel nights", hotel={"type": "integer"}, nights=_COUNT,
            guests=_list(_object("name", name=_TEXT, age=_nullable("integer"))),
            wishes=_TEXT,
        ),
        {
            "hotel": 9007199254740991, "nights": 2, "guests": [{"name": "Ann", "age": None}],
            "wishes": "quiet; 2nd floor",
        },
    ),
    "set_lights": Function(
        _object(
            "room", room=_TEXT, on=_FLAG, brightness={"type": "integer", "minimum": 0, "maximum": 100},
            color=_list({"type": "integer"}, minItems=3, maxItems=3),
        ),
        {"room": "kitchen", "on": True, "brightness": 0, "color": [255, 128, 0]},
    ),
    "set_thermostat": Function(
        _object("target", target=_NUMBER, until=_nullable("string"), mode={"enum": ["heat", "cool", "off"]}),
        {"target": 21.0, "until": None, "mode": "heat"},
    ),
    "write_file": Function(
        _object("path content", path=_TEXT, content=_TEXT, mode={"type": "string"}),
        {
            "path": "src/a b.py",
            "content": "def f(x):\n    if x < 3:\n        return {'a': [\"\\n\"]}\n\n    return None  # </p>",
            "mode": "0644",
        },
    ),
    "edit_file": Function(
        _object("path edits", path=_TEXT, edits=_list(_object("old new", old=_TEXT, new=_TEXT, all=_FLAG))),
        {
            "path": "a.md",
            "edits": [{"old": "- [ ] todo", "new": "- [x] todo", "all": False}, {"old": "\\d+", "new": ""}],
        },
    ),
    "run_command": Function(
        _object(
            "argv", argv=_list(_TEXT, minItems=1), env={"type": "object", "additionalProperties": _TEXT},
            cwd=_nullable("string"),
        ),
        {"argv": ["sh", "-c", "mkdir -p out/{a,b && ls }}"], "env": {"LANG": "C.UTF-8", "X": ""}, "cwd": None},
    ),
    "fetch_url": Function(
        _object(
            "url", url={"type": "string", "format": "uri"}, method={"enum": ["GET", "POST"]},
            headers={"type": "object", "additionalProperties": _TEXT}, body={"type": ["object", "string", "null"]},
        ),
        {
            "url": "https://example.com/a?b=%5Bc%5D&d=~", "method": "POST", "headers": {"x-a": "1"},
            "body": {"k": [1, {"n": None}]},
        },
    ),
    "scale_deployment": Function(
        _object(
            "name replicas", name=_TEXT, namespace=_TEXT, replicas=_COUNT,
            labels={"type": "object", "additionalProperties": _TEXT},
        ),
        {"name": "web", "namespace": "default", "replicas": 0, "labels": {"app.kubernetes.io/name": "web"}},
    ),
    "query_metrics": Function(
        _object(
            "query start", query=_TEXT, start=_TIME, step={"type": "string", "pattern": "^[0-9]+[smh]$"},
            limit=_nullable("integer"),
        ),
        {
            "query": 'sum(rate(http_total{code=~"5.."}[5m])) by (job) > 0.5', "start": "2025-01-02T03:04:05Z",
            "step": "30s", "limit": None,
        },
    ),
    "translate": Function(
        _object(
            "texts target", texts=_list(_TEXT), target={"type": "string"},
            glossary=_list(_list(_TEXT, minItems=2, maxItems=2)),
        ),
        {"texts": ["Grüezi", "你好 ☕"], "target": "en", "glossary": [["Bank", "bench"]]},
    ),
    "vector_search": Function(
        _object(
            "vector", vector=_list(_NUMBER), top={"type": "integer", "minimum": 1},
            filter={"anyOf": [{"type": "object"}, {"type": "null"}]},
        ),
        {"vector": [0.5, -1.25, 3e-07, 1.0], "top": 5, "filter": None},
    ),
    "post_message": Function(
        _object(
            "channel blocks", channel=_TEXT, thread=_nullable("string"),
            blocks=_list(
                {
                    "anyOf": [
                        _object("type text", type={"const": "text"}, text=_TEXT),
                        _object("type url", type={"const": "image"}, url=_TEXT),
                    ],
                },
            ),
        ),
        {
            "channel": "#ops", "thread": None,
            "blocks": [{"type": "text", "text": "*Done* :tada: <@U1>"}, {"type": "image", "url": "x.png"}],
        },
    ),
}  # fmt: skip
