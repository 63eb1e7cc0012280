from __future__ import annotations

import json

import pydantic
import pytest
import shop

import jetsync
from jetsync_schema import (
    AvroSchema,
    DefinitionError,
    JsonSchema,
    PydanticModel,
    Schemas,
    ViolationError,
)
from jetsync_schema.registry.definitions import Surroundings, parse_definition


class Point(pydantic.BaseModel):
    x: int


@pytest.fixture
def write(tmp_path):
    """
    Write files to a folder, as text or as JSON, and return the folder.
    """

    def write(**files):
        for name, said in files.items():
            text = said if isinstance(said, str) else json.dumps(said)
            path = tmp_path / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
        return tmp_path

    return write


def index(*contracts):
    """
    Return an index with these contracts.
    """
    return {"contracts": list(contracts)}


ORDERS = {"subjects": "orders.>", "schema": "order.json"}


class TestDirectory:
    def test_schemas_are_files_beside_the_index(self, write):
        """
        Schemas of all kinds may be inline or in files, and a definition's name appears in errors.
        """
        folder = write(
            index_json=index(
                {**ORDERS, "name": "orders"},
                {
                    "subjects": ["trips.>", "rides.>"],
                    "kind": "avro",
                    "schema": "2.avsc",
                    "versions": ["1.avsc"],
                },
                {"subjects": "points.*", "kind": "pydantic", "model": "shop_models:Point"},
                {"subjects": "more.*", "schema": {"type": "integer"}},
            ),
            order_json=shop.SCHEMA,
            **{"2_avsc": shop.AVRO_2, "1_avsc": shop.AVRO_1},
        )
        plugin = Schemas(directory=folder, models={"shop_models:Point": Point})

        assert plugin.contracts == {
            "orders.>": "orders",
            "trips.>": "trips.>",
            "rides.>": "trips.>",
            "points.*": "points.*",
            "more.*": "more.*",
        }
        with pytest.raises(ViolationError, match="breaks contract 'orders'") as caught:
            plugin.check("orders.1", shop.BAD)
        assert caught.value.path == shop.PATH
        plugin.check("rides.1", shop.TRIPS.dump({"id": "a"}))
        assert plugin.encode("points.1", Point(x=1)).data == b'{"x":1}'

    def test_models_are_imported(self, write):
        """
        Files may name models to import, because their authors also control the program.
        """
        folder = write(
            index_json=index({"subjects": "a", "kind": "pydantic", "model": "threading:Thread"})
        )
        with pytest.raises(DefinitionError, match=r"contract 0.*Thread"):
            # A type that pydantic does not support.
            Schemas(directory=folder)

        folder = write(
            index_json=index(
                {"subjects": "a", "kind": "pydantic", "model": "ipaddress:IPv4Address"}
            )
        )
        Schemas(directory=folder).check("a", b'"127.0.0.1"')

    def test_schemas_refer_to_other_files(self, write):
        """
        References may lead through several files, also in cycles.
        """
        folder = write(
            index_json=index(ORDERS),
            order_json={"properties": {"to": {"$ref": "address.json"}}},
            address_json={
                "properties": {"next": {"$ref": "order.json"}, "zip": {"$ref": "x.json#/$defs/zip"}}
            },
            x_json={"$defs": {"zip": {"type": "string"}}},
        )

        with pytest.raises(ViolationError, match=r"\$\.to\.next\.to\.zip"):
            Schemas(directory=folder).check("orders.1", b'{"to": {"next": {"to": {"zip": 1}}}}')

    def test_files_outside_are_not_read(self, write):
        """
        Neither the index nor a schema can name a file outside the folder.
        """
        folder = write(index_json=index({**ORDERS, "schema": "../x.json"}))
        with pytest.raises(DefinitionError, match="outside the directory"):
            Schemas(directory=folder)

        write(index_json=index(ORDERS), order_json={"$ref": "/etc/hostname"})
        with pytest.raises(DefinitionError, match="outside the directory"):
            Schemas(directory=folder)

    def test_a_broken_definition_keeps_all_old_ones_in_use(self, write):
        """
        If any definition is broken, all old ones stay in use.
        """
        folder = write(index_json=index({"subjects": "a", "schema": {"type": "integer"}}))
        plugin = Schemas(directory=folder)
        write(index_json=index({"subjects": "a", "schema": {"type": "null"}}, {"subjects": "b"}))
        with pytest.raises(DefinitionError, match="contract 1: definition: json needs 'schema'"):
            plugin.reload()
        plugin.check("a", b"1")

        write(index_json=index({"subjects": "a", "schema": {"type": "null"}}))
        plugin.reload()
        with pytest.raises(ViolationError):
            plugin.check("a", b"1")

    @pytest.mark.parametrize(
        ("said", "reason"),
        [
            ("{", "not JSON"),
            ([], "list"),
            ({}, "list"),
            (index(5), "must be an object"),
            (index({"schema": {}}), '"subjects"'),
            (index({"subjects": [], "schema": {}}), '"subjects"'),
            (index({"subjects": [5], "schema": {}}), "must be text"),
            (index({"subjects": "a..b", "schema": {}}), "empty token"),
            (index({"subjects": "a", "kind": "xml", "schema": {}}), "one of json, avro, pydantic"),
            (
                index({"subjects": "a", "kind": ["json"], "schema": {}}),
                "one of json, avro, pydantic",
            ),
            (index({"subjects": "a", "shema": {}}), "did you mean 'schema'"),
            (
                index({"subjects": "a", "schema": {}, "versions": []}),
                "json has no field 'versions'",
            ),
            (index({"subjects": "a", "schema": "none.json"}), "No such file"),
            (index({"subjects": "a", "schema": {}, "formats": 1}), "must be bool, not 1"),
            (index({"subjects": "a", "schema": {}, "name": ""}), "a name must be text"),
            (index({"subjects": "a", "schema": {}, "documents": []}), '"documents"'),
            (index({"subjects": "a", "kind": "pydantic", "model": "x"}), "package.module:Name"),
            (index({"subjects": "a", "kind": "pydantic", "model": "no.such:Name"}), "no.such"),
            (index({"subjects": "a", "kind": "avro", "schema": {"type": "x"}}), "Avro"),
        ],
    )
    def test_errors_name_the_place(self, write, said, reason):
        """
        The error has the file, the contract and the reason.
        """
        folder = write(index_json=said)

        with pytest.raises(DefinitionError) as caught:
            Schemas(directory=folder)
        assert str(folder / "index.json") in str(caught.value)
        assert reason in str(caught.value)

    def test_a_folder_without_an_index_is_refused(self, tmp_path):
        """
        Files without an index do not define contracts.
        """
        with pytest.raises(DefinitionError, match=r"index\.json"):
            Schemas(directory=tmp_path)

    def test_two_contracts_for_one_pattern_are_refused(self, write):
        """
        Within a folder, and between a folder and the program, a pattern has one contract.
        """
        one = {"subjects": "a.*", "schema": {}}
        with pytest.raises(jetsync.ConfigurationError, match=r"'a\.\*' already has a contract"):
            Schemas(directory=write(index_json=index(one, one)))
        with pytest.raises(jetsync.ConfigurationError, match=r"'a\.\*' already has a contract"):
            Schemas({"a.*": shop.ORDERS}, directory=write(index_json=index(one)))


@pytest.mark.parametrize(
    "contract",
    [
        shop.ORDERS,
        JsonSchema(False, "7", formats=True),
        JsonSchema({"$ref": "a"}, documents={"a": {"type": "null"}}),
        shop.TRIPS,
        AvroSchema(shop.AVRO_2, id="8", versions={"7": shop.AVRO_1}),
        PydanticModel(Point, strict=True),
    ],
)
def test_a_contract_writes_its_own_definition(contract):
    """
    A contract's own definition defines an equal contract.
    """
    said = contract.definition("a.*", "b.>", name="mine")
    found = parse_definition(said, "key", Surroundings({"Point": Point}))

    assert found.contract == contract
    assert (found.name, found.subjects) == ("mine", ("a.*", "b.>"))
    assert (
        parse_definition(contract.definition("a"), "key", Surroundings({"Point": Point})).name
        == "key"
    )


def test_a_definition_imports_nothing_unless_it_is_a_file():
    """
    A user who can write to a bucket cannot run code by that.
    """
    said = json.dumps({"subjects": "a", "kind": "pydantic", "model": "ipaddress:IPv4Address"})

    with pytest.raises(
        DefinitionError, match="unknown model 'ipaddress:IPv4Address'; known models: Point"
    ):
        parse_definition(said.encode(), "key", Surroundings({"Point": Point}))


def test_a_definition_reads_no_files_unless_it_is_one():
    """
    A definition that is not a file cannot read files by name.
    """
    with pytest.raises(DefinitionError, match="a schema must be an object"):
        parse_definition(b'{"subjects": "a", "schema": "/etc/hostname"}', "key", Surroundings())
    with pytest.raises(DefinitionError, match="'x' is not present"):
        parse_definition(b'{"subjects": "a", "schema": {"$ref": "x"}}', "key", Surroundings())
