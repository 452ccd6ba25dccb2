"""20 JSON schemas of rising difficulty and their grammars. All answers but one's end within 200 tokens."""

import json


def an_object(**properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


WORD = {"type": "string", "maxLength": 12}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}

SCHEMAS = {
    "boolean": an_object(ok={"type": "boolean"}),
    "one string": an_object(name=WORD),
    "integer with bounds": an_object(age={"type": "integer", "minimum": 18, "maximum": 120}),
    "number with bounds": an_object(
        share={"type": "number", "exclusiveMinimum": 0, "maximum": 1.5, "multipleOf": 0.25}
    ),
    "multiple of": an_object(
        price={"type": "integer", "multipleOf": 25, "minimum": 0, "maximum": 1000}, stars={"enum": [1, 2, 3]}
    ),
    "enum": an_object(color={"enum": ["red", "green", "blue"]}, shade={"type": ["integer", "null"], "enum": [1, None]}),
    "const": an_object(kind={"const": "point"}, version={"const": 3}, note={"type": "null"}),
    "string lengths": an_object(
        code={"type": "string", "minLength": 4, "maxLength": 8}, empty={"maxLength": 0, "type": "string"}
    ),
    "array with bounds": {"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 5},
    "tuple": {
        "type": "array",
        "prefixItems": [WORD, DIGIT, {"type": "boolean"}],
        "items": False,
        "minItems": 3,
    },
    "nested objects": an_object(user=an_object(name=WORD, address=an_object(street=WORD, zip=DIGIT))),
    "optional properties": {
        "type": "object",
        "properties": {"a": DIGIT, "b": WORD, "c": {"type": "boolean"}, "d": DIGIT},
        "required": ["b"],
        "additionalProperties": False,
    },
    "additional properties": {
        "type": "object",
        "properties": {"id": DIGIT},
        "required": ["id"],
        "patternProperties": {"^[a-c]$": {"type": "boolean"}, "^x_[a-z]$": {"type": "null"}},
        "additionalProperties": False,
        "maxProperties": 4,
    },
    "pattern": an_object(
        plate={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
        hex={"type": "string", "pattern": "^(0x)?[0-9a-f]{1,6}$"},
    ),
    "formats": an_object(
        day={"type": "string", "format": "date"},
        host={"type": "string", "format": "ipv4"},
        id={"type": "string", "format": "uuid"},
    ),
    "any of": an_object(
        value={
            "anyOf": [
                DIGIT,
                WORD,
                an_object(deep={"type": "boolean"}),
                {"type": "array", "items": DIGIT, "maxItems": 2},
            ]
        }
    ),
    "all of": {
        "allOf": [{"$ref": "#/$defs/named"}, an_object(name=WORD, age=DIGIT)],
        "$defs": {"named": {"required": ["name"]}},
    },
    "unicode keys": {
        "type": "object",
        "properties": {"größe": DIGIT, "名前": WORD, 'a "b"\\c': DIGIT, "🦅": {"enum": ["é", "ß", "鷲"]}},
        "required": ["größe", "名前", 'a "b"\\c', "🦅"],
        "additionalProperties": False,
    },
    "recursive list": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": an_object(value=DIGIT, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}),
        },
    },
    "order": {
        **an_object(
            id={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2}$"},
            customer={"$ref": "#/$defs/customer"},
            lines={"type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1, "maxItems": 2},
            state={"enum": ["open", "paid", "gone"]},
        ),
        "$defs": {
            "customer": an_object(
                name=WORD, vip={"type": "boolean"}, tags={"type": "array", "items": WORD, "maxItems": 2}
            ),
            "line": an_object(
                sku=WORD,
                count={"type": "integer", "minimum": 1, "maximum": 99},
                price={"type": "integer", "minimum": 0, "maximum": 10},
            ),
        },
    },
}

UNBOUNDED = "recursive list"  # greedy, a model may nest it until its tokens are spent

ANALYSIS = '(<|channel|> "analysis" <|message|> TEXT <|end|> <|start|> "assistant")?'


def grammar_of(schema, *, with_analysis=False):
    """The whole answer: reasoning if wanted, then the final message with JSON and no idle white space."""
    lines = [
        "%llguidance {}",
        f'start: {ANALYSIS if with_analysis else ""} <|channel|> "final" <|message|> body <|return|>',
        "body: %json " + json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}}),
    ]
    return "\n".join([*lines, *(["TEXT: /(.|\\n){0,200}/"] if with_analysis else [])]) + "\n"
