"""The part of JSON Schema (2020-12) that docs/statistics.schema.json uses: type, const, minimum, pattern, properties,
required, additionalProperties, items. Any other keyword is refused, so that none is passed over."""
import re

TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
NOTES = {"$schema", "$id", "title", "description"}
KNOWN = NOTES | {"type", "const", "minimum", "pattern", "properties", "required", "additionalProperties", "items"}


def problems(value, schema, where="document"):
    """What is wrong with the value, a sentence each."""
    unknown = set(schema) - KNOWN
    if unknown:
        raise ValueError(f"{where}: the schema has {sorted(unknown)}, which this check does not know")
    wanted = schema.get("type")
    if wanted and (not isinstance(value, TYPES[wanted]) or (wanted == "integer" and isinstance(value, bool))):
        yield f"{where} is no {wanted}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{where} is {value}, not {schema['const']}"
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{where} is {value}, below {schema['minimum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{where} is {value!r}, which {schema['pattern']} does not match"
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{where} lacks {name}"
        for name, member in value.items():
            if name in known:
                yield from problems(member, known[name], f"{where}.{name}")
            elif schema.get("additionalProperties", True) is False:
                yield f"{where} has {name}, which the schema does not"
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), f"{where}[{i}]")
