from __future__ import annotations

import dataclasses
import pickle
from typing import Annotated, Literal

import pydantic
import pytest
import shop

from jetsync_schema import DefinitionError, PydanticModel, Schemas, ViolationError


class Item(pydantic.BaseModel):
    price: float


class Card(pydantic.BaseModel):
    kind: Literal["card"]
    number: int


class Cash(pydantic.BaseModel):
    kind: Literal["cash"]


class Order(pydantic.BaseModel):
    id: str
    items: list[Item] = []
    note: int | list[int] | None = None
    pay: Annotated[Card | Cash, pydantic.Field(discriminator="kind")] | None = None
    unit_price: float = pydantic.Field(0.0, alias="unit price")


ORDERS = Schemas({"orders.>": PydanticModel(Order)})


def path_of(data):
    """
    Return the paths of the violations of a document.
    """
    with pytest.raises(ViolationError) as caught:
        ORDERS.check("orders.1", data)
    return caught.value.path


def test_the_error_of_a_model_has_subject_contract_and_path():
    """
    The error has the same attributes as for each kind of contract.
    """
    ORDERS.check("orders.1", shop.GOOD)
    with pytest.raises(ViolationError) as caught:
        ORDERS.check("orders.1", shop.BAD)

    assert caught.value.path == shop.PATH
    assert (
        "subject 'orders.1' breaks contract 'orders.>': $.items[3].price: Input should be"
        in str(caught.value)
    )


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b'{"id": 1}', "$.id"),
        (b"{}", "$.id"),
        (b"[]", "$"),
        (b"", "$"),
        (b'{"id": "1", "items": [{}]}', "$.items[0].price"),
        (b'{"id": "1", "note": [1, "x"]}', "$.note"),
        (b'{"id": "1", "pay": {"kind": "card"}}', "$.pay.number"),
        (b'{"id": "1", "pay": {"kind": "coin"}}', "$.pay"),
        (b'{"id": "1", "unit price": "x"}', "$['unit price']"),
        (b'{"id": "1", "unit price": NaN}', "$"),
        (b'{"id": "1", "unit price": -Infinity}', "$"),
    ],
)
def test_paths_are_those_of_the_document(data, path):
    """
    Paths omit names of alternatives that the model tried, and include a missing field.
    """
    assert path_of(data) == path


@pytest.mark.parametrize(
    "number", ["1e400", "-1E+400", "9" * 309 + ".5", "9" * 220 + "e99", "NaN", "-Infinity"]
)
def test_numbers_have_to_be_finite(number):
    """
    A number that is too large for a float would be read as infinite, so it is refused.
    """
    for text in (f'{{"id": "1", "unit price": {number}}}', f'{{"id": "1", "more": [{number}]}}'):
        with pytest.raises(ViolationError) as caught:
            ORDERS.check("orders.1", text.encode())
        assert caught.value.path == "$"


def test_texts_are_not_limited_like_numbers():
    """
    Only numbers must be valid JSON numbers, and a long one may be an integer.
    """
    ORDERS.check("orders.1", b'{"id": "NaN Infinity 1e400"}')
    assert PydanticModel(int).load(b"9" * 400) == int("9" * 400)


def test_the_error_of_a_model_shows_no_values():
    """
    The text does not contain the document's values.
    """
    with pytest.raises(ViolationError) as caught:
        ORDERS.check("orders.1", b'{"id": "1", "unit price": "hunter2"}')

    assert "hunter2" not in str(caught.value)
    with pytest.raises(ViolationError) as caught:
        ORDERS.check("orders.1", b'{"id": "1", "pay": {"kind": "hunter2"}}')
    assert "hunter2" not in str(caught.value)


def test_strict_takes_values_as_they_are():
    """
    With strict, text is not a number. Otherwise the model decides.
    """
    data = b'{"price": "1.5"}'
    Schemas({">": PydanticModel(Item)}).check("a", data)

    with pytest.raises(ViolationError):
        Schemas({">": PydanticModel(Item, strict=True)}).check("a", data)


def test_other_types_are_models_too():
    """
    Dataclasses and other types that pydantic accepts are models, too.
    """

    @dataclasses.dataclass
    class Point:
        x: int

    plugin = Schemas({"point": PydanticModel(Point), "points": PydanticModel(list[Point])})

    assert plugin.encode("point", Point(1)).data == b'{"x":1}'
    plugin.check("points", b'[{"x": 1}]')
    with pytest.raises(ViolationError, match=r"\$\[1\]\.x"):
        plugin.check("points", b'[{"x": 1}, {"x": "y"}]')


def test_objects_are_encoded_and_decoded():
    """
    Documents are encoded by alias, and only if the model could read them again.
    """
    message = ORDERS.encode("orders.1", Order(id="1", **{"unit price": 2}))
    assert b'"unit price":2.0' in message.data

    with pytest.raises(ViolationError, match="not a Order: dict, or a value in it, does not fit"):
        ORDERS.encode("orders.1", {"id": object()})


class Careless(pydantic.BaseModel):
    secret: str

    @pydantic.field_serializer("secret")
    def write(self, secret):
        raise ValueError(f"what is {secret}?")


@pytest.mark.parametrize(
    "document",
    [
        {"id": "hunter2"},
        Order.model_construct(id=["hunter2"]),
        Order.model_construct(id="1", items=["hunter2"]),
        "hunter2",
    ],
)
def test_an_encoding_error_of_a_model_shows_no_values(document):
    """
    Neither the text of an error nor its cause has a value, because both are logged.
    """
    with pytest.raises(ViolationError, match="not a Order") as caught:
        ORDERS.encode("orders.1", document)

    shop.check_silent(caught.value)
    with pytest.raises(ViolationError, match="not a Careless") as caught:
        Schemas({">": PydanticModel(Careless)}).encode("a", Careless(secret="hunter2"))
    shop.check_silent(caught.value)


def test_only_models_make_a_contract_of_pydantic():
    """
    Other types are refused when the contract is made.
    """
    with pytest.raises(DefinitionError, match="object"):
        PydanticModel(object())


def test_a_model_is_pickled_by_its_name():
    """
    The model is pickled by its name.
    """
    contract = PydanticModel(Order, strict=True)

    assert pickle.loads(pickle.dumps(contract)) == contract
