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
    Return where a document is wrong.
    """
    with pytest.raises(ViolationError) as caught:
        ORDERS.check("orders.1", data)
    return caught.value.path


def test_the_error_names_subject_contract_and_path():
    """
    As for every kind of contract.
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
def test_paths_lead_through_the_document(data, path):
    """
    Names of alternatives that the model tried are no part of them; a field that is missing is.
    """
    assert path_of(data) == path


@pytest.mark.parametrize(
    "number", ["1e400", "-1E+400", "9" * 309 + ".5", "9" * 220 + "e99", "NaN", "-Infinity"]
)
def test_numbers_have_to_be_finite(number):
    """
    One that is too large for a float would be read as infinite, wherever it is.
    """
    for text in (f'{{"id": "1", "unit price": {number}}}', f'{{"id": "1", "more": [{number}]}}'):
        with pytest.raises(ViolationError) as caught:
            ORDERS.check("orders.1", text.encode())
        assert caught.value.path == "$"


def test_texts_may_say_what_numbers_may_not():
    """
    Only numbers have to be ones that JSON has; a long one may be an integer.
    """
    ORDERS.check("orders.1", b'{"id": "NaN Infinity 1e400"}')
    assert PydanticModel(int).load(b"9" * 400) == int("9" * 400)


def test_values_are_not_told():
    """
    The text does not have what is in the document.
    """
    with pytest.raises(ViolationError) as caught:
        ORDERS.check("orders.1", b'{"id": "1", "unit price": "hunter2"}')

    assert "hunter2" not in str(caught.value)
    with pytest.raises(ViolationError) as caught:
        ORDERS.check("orders.1", b'{"id": "1", "pay": {"kind": "hunter2"}}')
    assert "hunter2" not in str(caught.value)


def test_strict_takes_values_as_they_are():
    """
    A text is no number then; without it the model decides.
    """
    data = b'{"price": "1.5"}'
    Schemas({">": PydanticModel(Item)}).check("a", data)

    with pytest.raises(ViolationError):
        Schemas({">": PydanticModel(Item, strict=True)}).check("a", data)


def test_other_types_are_models_too():
    """
    Dataclasses, and whatever else pydantic takes.
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
    By their aliases, and only what the model would read again.
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
def test_what_can_not_be_written_is_not_told(document):
    """
    Neither in the text, nor as what the error comes from: both are logged.
    """
    with pytest.raises(ViolationError, match="not a Order") as caught:
        ORDERS.encode("orders.1", document)

    shop.check_silent(caught.value)
    with pytest.raises(ViolationError, match="not a Careless") as caught:
        Schemas({">": PydanticModel(Careless)}).encode("a", Careless(secret="hunter2"))
    shop.check_silent(caught.value)


def test_what_is_no_model_is_refused():
    """
    When the contract is made.
    """
    with pytest.raises(DefinitionError, match="object"):
        PydanticModel(object())


def test_a_contract_can_be_pickled():
    """
    The model goes by its name.
    """
    contract = PydanticModel(Order, strict=True)

    assert pickle.loads(pickle.dumps(contract)) == contract
