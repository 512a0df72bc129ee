//! `--set PATH=VALUE`: changes one field of a manifest's spec before it is validated. Pure.

use serde_json::{Map, Value};

/// Sets the field of `spec` that `argument` (`training.seed=2`) names. The value is read as YAML, so that
/// numbers, booleans, lists and maps can be given; missing objects on the way are made; `null` removes the
/// field. What the field
/// may hold is for validation to say.
///
/// # Errors
/// When there is no `=`, the path is empty, or it goes through something that is neither object nor list.
pub fn apply_set(spec: &mut Value, argument: &str) -> Result<(), String> {
    let Some((path, value)) = argument.split_once('=') else {
        return Err(format!(
            "--set {argument}: write FIELD=VALUE, such as --set training.seed=2"
        ));
    };
    let path = path.strip_prefix("spec.").unwrap_or(path);
    if path.split('.').any(str::is_empty) {
        return Err(format!(
            "--set {argument}: {path:?} is not a path of fields such as training.seed"
        ));
    }
    let value = parse_value(value);
    let mut place = spec;
    let mut walked = String::from("spec");
    let mut keys = path.split('.').peekable();
    while let Some(key) = keys.next() {
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        place =
            match place {
                Value::Object(fields) if value.is_null() && keys.peek().is_none() => {
                    fields.shift_remove(key);
                    return Ok(());
                }
                Value::Object(fields) => fields.entry(key).or_insert(Value::Null),
                Value::Array(items) => {
                    let length = items.len();
                    key.parse::<usize>().ok().and_then(|i| items.get_mut(i)).ok_or_else(|| {
                    format!("--set {argument}: {walked} is a list of {length}, {key:?} is not an index of it")
                })?
                }
                _ => {
                    return Err(format!(
                        "--set {argument}: {walked} is a plain value, it has no field {key:?}"
                    ));
                }
            };
        walked = format!("{walked}.{key}");
    }
    *place = value;
    Ok(())
}

fn parse_value(text: &str) -> Value {
    match serde_saphyr::from_str::<Value>(text) {
        Ok(value) => value,
        Err(_) => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_field_is_replaced_and_missing_objects_are_made() {
        let mut spec = json!({"training": {"seed": 1, "epochs": 3}, "list": [{"a": 1}]});
        for argument in [
            "training.seed=2",
            "spec.training.optimizer.name=AdamW",
            "task.parameters={model: cnn}",
            "list.0.a=0.5",
            "training.epochs=null",
        ] {
            apply_set(&mut spec, argument).unwrap();
        }
        assert_eq!(
            spec,
            json!({
                "training": {"seed": 2, "optimizer": {"name": "AdamW"}},
                "list": [{"a": 0.5}],
                "task": {"parameters": {"model": "cnn"}}
            })
        );
    }

    #[test]
    fn a_path_that_leads_nowhere_is_named() {
        let mut spec = json!({"training": {"seed": 1}, "list": []});
        for (argument, part) in [
            ("training.seed", "FIELD=VALUE"),
            ("training..seed=1", "not a path"),
            ("training.seed.deep=1", "no field \"deep\""),
            ("list.0=1", "list of 0"),
        ] {
            let error = apply_set(&mut spec, argument).unwrap_err();
            assert!(error.contains(part) && error.contains(argument), "{error}");
        }
    }
}
