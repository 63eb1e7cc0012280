"""
Contracts as codecs of the values of a bucket.
"""

from __future__ import annotations

import pydantic
import pytest
import shop

import jetsync
from jetsync_schema import AvroSchema, Contract, MismatchError, PydanticModel, Schemas, Violation

pytestmark = pytest.mark.live


class Stock(pydantic.BaseModel):
    """
    How many there are.
    """

    left: int


class Csv(Contract):
    """
    A format of the user.
    """

    kind = "csv"

    def load(self, data, schema_id=None):
        """
        Split a line.
        """
        row = data.decode().split(",")
        if len(row) != 2:
            raise MismatchError(Violation("$", "not 2 columns"))
        return row

    def dump(self, document):
        """
        Join the columns.
        """
        return ",".join(document).encode()


@pytest.mark.parametrize(
    ("contract", "document", "stored"),
    [
        (PydanticModel(Stock), Stock(left=2), b'{"left":2}'),
        (shop.ORDERS, {"id": "1"}, b'{"id": "1"}'),
        (Csv(), ["a", "b"], b"a,b"),
    ],
)
def test_values_are_documents(bucket, contract, document, stored):
    """
    A bucket with a contract takes documents, stores what the contract dumps, and returns documents.
    """
    kv = bucket.with_codec(keys=jetsync.PathCodec(), values=contract)
    kv.put("/a", document)

    assert bucket.get("_root_.a").value.replace(b" ", b"") == stored.replace(b" ", b"")
    assert kv.get("/a").value == document
    kv.delete("/a")
    assert [entry.value for entry in kv.history("/a")] == [document, b""]


def test_a_document_that_violates_its_contract_is_not_sent(bucket):
    """
    The error names the key and the path, and nothing of the document; the key stays as it is.
    """
    kv = bucket.with_codec(values=shop.ORDERS)
    with pytest.raises(jetsync.InvalidArgumentError, match="value of key 'a'") as caught:
        kv.put("a", {"id": "1", "items": [{"price": "s3cret"}]})

    assert "$.items[0].price" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert isinstance(caught.value.__cause__, MismatchError)
    assert "a" not in kv


def test_a_value_that_violates_its_contract_is_an_error(bucket):
    """
    Reading such a value raises an error with the key, the revision and the path.
    """
    bucket.put("a", shop.BAD)
    with pytest.raises(jetsync.DecodeError) as caught:
        bucket.with_codec(values=shop.ORDERS).get("a")

    assert (caught.value.key, caught.value.sequence) == ("a", 1)
    assert shop.PATH in caught.value.reason


class TestAvro:
    @pytest.mark.parametrize("custom", [False, True])
    def test_values_of_earlier_schemas_are_converted(self, bucket, custom):
        """
        The value has the fingerprint of its schema, so readers with later schemas can convert it.
        """
        versions = {"one": shop.AVRO_1} if custom else [shop.AVRO_1]
        new = AvroSchema(shop.AVRO_2, versions=versions, id="two" if custom else None)
        old = AvroSchema(shop.AVRO_1)
        bucket.with_codec(values=old).put("trip", {"id": "x"})
        kv = bucket.with_codec(values=new)
        assert kv.get("trip").value == {"id": "x", "stops": []}
        kv.put("trip", {"id": "y", "stops": [{"km": 1.0, "note": None}]})
        assert kv.get("trip").value["stops"][0]["km"] == 1.0

        stored = bucket.get("trip", 1).value
        fingerprint = bytes.fromhex(old.schema_id)[::-1]
        assert stored == b"\xc3\x01" + fingerprint + b"\x02x"
        with pytest.raises(jetsync.DecodeError, match="no schema has its fingerprint"):
            bucket.with_codec(values=old).get("trip")

    @pytest.mark.parametrize("value", [b"", b"\x02x", b"\xc3\x01\x00"])
    def test_other_values_are_refused(self, bucket, value):
        """
        A value without the fingerprint is not read as if the current schema had written it.
        """
        bucket.put("trip", value)
        with pytest.raises(jetsync.DecodeError, match="single-object"):
            bucket.with_codec(values=AvroSchema(shop.AVRO_1)).get("trip")


def test_the_plugin_checks_what_the_codec_stores(connect, bucket):
    """
    A plugin with a contract for the subjects of the bucket sees the stored values.
    """
    schemas = Schemas({f"$KV.{bucket.bucket}.>": shop.ORDERS})
    checked = connect(schemas).key_value(bucket.bucket)
    checked.with_codec(values=jetsync.JsonCodec()).put("a", {"id": "1"})
    with pytest.raises(jetsync.PluginError):
        checked.with_codec(values=jetsync.JsonCodec()).put("a", {})
