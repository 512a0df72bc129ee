//! Nulls and defaults, as the API server treats them before it validates.

use serde_json::Value;

/// Removes explicit nulls (they count as absent; where there is a default it takes their place) and fills in the
/// defaults of absent fields, at every depth where the object around them is given.
pub(super) fn fill(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            map.retain(|name, value| {
                let known = schema["properties"]
                    .get(name)
                    .or(schema.get("additionalProperties"));
                !value.is_null() || known.is_none_or(|k| !k.is_object() || k.get("default").is_some())
            });
            if let Some(properties) = schema["properties"].as_object() {
                for (name, property) in properties {
                    if let Some(default) = property.get("default")
                        && map.get(name).is_none_or(Value::is_null)
                    {
                        map.insert(name.clone(), default.clone());
                    }
                }
            }
            for (name, value) in map {
                if let Some(known) = schema["properties"]
                    .get(name)
                    .or(schema.get("additionalProperties"))
                {
                    fill(value, known);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill(item, &schema["items"])),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_go_where_the_object_around_them_is_given_and_nowhere_else() {
        let schema = json!({"properties": {
            "a": {"type": "integer", "default": 3},
            "b": {"type": "object", "properties": {"c": {"type": "string", "default": "x"}}},
            "d": {"type": "object", "properties": {"e": {"type": "string", "default": "y"}}},
            "f": {"type": "string"},
        }});
        let mut value = json!({"a": null, "b": {}, "f": null, "g": null});
        fill(&mut value, &schema);
        assert_eq!(value, json!({"a": 3, "b": {"c": "x"}, "g": null}));
    }
}
