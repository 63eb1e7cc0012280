"""
Random schemas and documents, small enough that documents often nearly match.
"""

from __future__ import annotations

import copy

NAMES = ("a", "b", "c", "ab", "x-1", "é")
TEXTS = ("", "a", "ab", "abc", "ABC", "a1", "12", "é", "😀", "x-1", "null")
NUMBERS = (0, 1, 2, 3, -1, 7, 10, 1.0, 0.5, 1.5, -2.5, 100, 2**53, 2**64, -(2**70), 1e15, -0.0)
PATTERNS = ("^a", "b+", "^[a-c]*$", "^.$", "[0-9]", "^(a|b)")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

DRAFTS = ("4", "6", "7", "2019-09", "2020-12")


class Schemas:
    """
    A source of schemas of one draft.
    """

    def __init__(self, random, draft):
        self.random = random
        self.draft = draft
        self.age = DRAFTS.index(draft)

    def whole(self):
        """
        Return a schema that refers to parts of itself, and to itself.
        """
        holder = "$defs" if self.age >= 3 else "definitions"
        schema = self.schema(3, [f"#/{holder}/p", f"#/{holder}/q"])
        if not isinstance(schema, dict):
            schema = {"allOf": [schema]}
        # Only a finite structure may lead back to the schema itself.
        inner = [f"#/{holder}/p"]
        schema[holder] = {
            "p": self.schema(1, []),
            "q": {"properties": {"a": {"$ref": "#"}, "b": {"$ref": inner[0]}}},
        }
        return schema

    def schema(self, depth, references):
        """
        Return a schema with that many levels.
        """
        pick = self.random.random()
        if self.age >= 1 and pick < 0.04:
            return pick < 0.03
        if references and pick < 0.15:
            return {"$ref": self.random.choice(references)}
        makers = [self.number, self.text, self.array, self.object, self.value, self.kind]
        if depth > 0:
            makers += [self.combined, self.array, self.object, self.object]
        schema = {}
        # Each keyword once: the reference fails on two that contradict each other.
        for maker in dict.fromkeys(self.random.sample(makers, self.random.choice((1, 1, 2, 3)))):
            schema.update(maker(depth - 1, references))
        return schema

    def below(self, depth, references):
        """
        Return a schema for a part of the documents.
        """
        return self.schema(depth, references) if depth > 0 else self.kind(0, [])

    def kind(self, _depth, _references):
        some = self.random.sample(TYPES, self.random.choice((1, 1, 1, 2, 3)))
        return {"type": some[0] if len(some) == 1 else some}

    def value(self, _depth, _references):
        values = [document(self.random, 1) for _ in range(self.random.randrange(1, 4))]
        if self.age >= 1 and self.random.random() < 0.4:
            return {"const": values[0]}
        distinct = []
        for each in values:
            # For some drafts, two equal schemas are invalid.
            if not any(repr(each) == repr(other) or each == other for other in distinct):
                distinct.append(each)
        return {"enum": distinct}

    def number(self, _depth, _references):
        found = {}
        low, high = sorted(self.random.sample((-3, 0, 1, 1.5, 2, 10, 2**63), 2))
        if self.age == 0:
            found = {"minimum": low, "exclusiveMinimum": self.random.random() < 0.5}
            if self.random.random() < 0.5:
                found = {"maximum": high, "exclusiveMaximum": self.random.random() < 0.5}
        else:
            found[self.random.choice(("minimum", "exclusiveMinimum"))] = low
            if self.random.random() < 0.5:
                found[self.random.choice(("maximum", "exclusiveMaximum"))] = high
        if self.random.random() < 0.3:
            # Halves are exact in decimals and in binary; tenths are not, nor is 1e300.
            found["multipleOf"] = self.random.choice((1, 2, 3, 0.5))
        return found

    def text(self, _depth, _references):
        found = {}
        if self.random.random() < 0.5:
            found["minLength"] = self.random.randrange(3)
        if self.random.random() < 0.5:
            found["maxLength"] = self.random.randrange(4)
        if self.random.random() < 0.5:
            found["pattern"] = self.random.choice(PATTERNS)
        return found

    def array(self, depth, references):
        found = {}
        random = self.random.random
        several = [self.below(depth, references) for _ in range(self.random.randrange(1, 3))]
        one = self.below(depth, references)
        if isinstance(one, bool):
            # The reference fails on `items: true` together with some of the following keywords.
            one = {} if one else {"not": {}}
        if random() < 0.6:
            found["items"] = one
        if random() < 0.3:
            if self.age == 4:
                found["prefixItems"] = several
            else:
                found["items"] = several
                if random() < 0.5:
                    found["additionalItems"] = one if random() < 0.7 else False
        if random() < 0.3:
            found["uniqueItems"] = True
        if random() < 0.3:
            found["minItems"] = self.random.randrange(3)
        if random() < 0.3:
            found["maxItems"] = self.random.randrange(4)
        if self.age >= 1 and random() < 0.3:
            found["contains"] = self.below(depth, references)
            if self.age >= 3 and random() < 0.5:
                found["minContains"] = self.random.randrange(3)
                found["maxContains"] = self.random.randrange(1, 4)
        if self.age >= 3 and random() < 0.15:
            found["unevaluatedItems"] = False
        return found

    def object(self, depth, references):
        found = {}
        random = self.random.random
        names = self.random.sample(NAMES, self.random.randrange(1, 4))
        if random() < 0.8:
            found["properties"] = {name: self.below(depth, references) for name in names}
        if random() < 0.4:
            found["required"] = self.random.sample(NAMES, self.random.randrange(1, 3))
        if random() < 0.3:
            closed = random() < 0.5
            found["additionalProperties"] = False if closed else self.below(depth, references)
        if random() < 0.2:
            pattern = self.random.choice(PATTERNS)
            found["patternProperties"] = {pattern: self.below(depth, references)}
        if random() < 0.2:
            found["minProperties"] = self.random.randrange(3)
        if random() < 0.2:
            found["maxProperties"] = self.random.randrange(4)
        if self.age >= 1 and random() < 0.2:
            found["propertyNames"] = {"maxLength": 1} if random() < 0.5 else {"pattern": "^[a-z]"}
        if random() < 0.2:
            name, needs = self.random.sample(NAMES, 2)
            both = ("dependentRequired", "dependentSchemas")
            which, schema = ("dependencies",) * 2 if self.age < 3 else both, self.below(1, [])
            found |= {which[0]: {name: [needs]}} if random() < 0.5 else {which[1]: {name: schema}}
        if self.age == 4 and random() < 0.15:
            # For 2019-09, the reference ignores that additionalProperties leaves no property over.
            found["unevaluatedProperties"] = False
        return found

    def combined(self, depth, references):
        random = self.random.random
        which = self.random.choice(("allOf", "anyOf", "oneOf", "not", "if"))
        if which == "if" and self.age >= 2:
            found = {"if": self.below(depth, references), "then": self.below(depth, references)}
            return found | ({"else": self.below(depth, references)} if random() < 0.5 else {})
        if which in {"not", "if"}:
            return {"not": self.below(depth, references)}
        return {which: [self.below(depth, references) for _ in range(self.random.randrange(1, 4))]}


def document(random, depth):
    """
    Return an arbitrary document with that many levels.
    """
    kind = random.randrange(4 if depth <= 0 else 7)
    if kind == 0:
        return random.choice((None, True, False))
    if kind == 1:
        return random.choice(NUMBERS)
    if kind in {2, 3}:
        return random.choice(TEXTS)
    if kind == 4:
        return [document(random, depth - 1) for _ in range(random.randrange(4))]
    return {name: document(random, depth - 1) for name in random.sample(NAMES, random.randrange(4))}


def shaped(random, schema, depth):
    """
    Return a document that partly matches a schema.
    """
    if not isinstance(schema, dict) or depth <= 0 or random.random() < 0.15:
        return document(random, 1)
    if "const" in schema:
        return copy.deepcopy(schema["const"])
    if "enum" in schema and random.random() < 0.7:
        return copy.deepcopy(random.choice(schema["enum"]))
    for word in ("allOf", "anyOf", "oneOf"):
        if word in schema and random.random() < 0.5:
            return shaped(random, random.choice(schema[word]), depth - 1)
    if "properties" in schema or "required" in schema:
        properties = schema.get("properties", {})
        found = {name: document(random, 0) for name in schema.get("required", ())}
        for name, inner in properties.items():
            if random.random() < 0.8:
                found[name] = shaped(random, inner, depth - 1)
        if random.random() < 0.2:
            found[random.choice(NAMES)] = document(random, 1)
        return found
    items = schema.get("prefixItems", schema.get("items"))
    if isinstance(items, list):
        return [shaped(random, inner, depth - 1) for inner in items]
    if items is not None:
        return [shaped(random, items, depth - 1) for _ in range(random.randrange(4))]
    kind = schema.get("type")
    kind = random.choice(kind) if isinstance(kind, list) else kind
    simple = {
        "null": (None,),
        "boolean": (True, False),
        "integer": [each for each in NUMBERS if each == int(each)],
        "number": NUMBERS,
        "string": TEXTS,
        "array": ([], [1, 1], [1, True], ["a", "b"]),
        "object": ({}, {"a": 1}, {"a": "b", "c": None}),
    }
    return copy.deepcopy(random.choice(simple[kind])) if kind else document(random, depth - 1)
