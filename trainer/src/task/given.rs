//! The free-form `spec.task.parameters` as a task reads them: typed, with errors that name the field, the
//! value and the way out. What was never asked for is unknown.

use crate::task::{ParameterError, PathMap};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// The parameters as the user wrote them. Every getter takes note of the field it is asked for, so that
/// [`GivenParameters::reject_unknown`] needs no list of its own.
#[derive(Debug)]
pub struct GivenParameters {
    fields: Map<String, Value>,
    paths: PathMap,
    asked: RefCell<Vec<String>>,
}

impl GivenParameters {
    /// Wraps `spec.task.parameters`; null is the same as none given.
    ///
    /// # Errors
    /// When it is not an object.
    pub fn new(parameters: &Value, paths: PathMap) -> Result<Self, ParameterError> {
        let fields = match parameters {
            Value::Null => Map::new(),
            Value::Object(fields) => fields.clone(),
            other => return Err(wrong("", other, "an object such as {model: cnn}")),
        };
        Ok(GivenParameters {
            fields,
            paths,
            asked: RefCell::default(),
        })
    }

    /// The field's value as it is; an explicit null counts as absent.
    #[must_use]
    pub fn value(&self, field: &str) -> Option<&Value> {
        let mut asked = self.asked.borrow_mut();
        if !asked.iter().any(|name| name == field) {
            asked.push(field.to_owned());
        }
        self.fields.get(field).filter(|value| !value.is_null())
    }

    /// A string, `default` if absent.
    ///
    /// # Errors
    /// When it is given and not a string.
    pub fn string_or(&self, field: &str, default: &str) -> Result<String, ParameterError> {
        Ok(self.string(field)?.unwrap_or_else(|| default.to_owned()))
    }

    /// A string that must be given; `example` is shown if it is not.
    ///
    /// # Errors
    /// When it is absent, empty or not a string.
    pub fn required_string(&self, field: &str, example: &str) -> Result<String, ParameterError> {
        match self.string(field)? {
            Some(text) if !text.is_empty() => Ok(text),
            Some(_) => Err(ParameterError::new(
                field,
                format!("empty; give for example {example}"),
            )),
            None => Err(ParameterError::new(
                field,
                format!("missing; give for example {example}"),
            )),
        }
    }

    /// One of `choices`, the first of them if absent.
    ///
    /// # Errors
    /// When it is another value: the nearest choice is suggested.
    pub fn choice(&self, field: &str, choices: &[&'static str]) -> Result<&'static str, ParameterError> {
        let Some(value) = self.value(field) else {
            return Ok(choices.first().copied().unwrap_or_default());
        };
        if let Some(choice) = choices.iter().find(|choice| value.as_str() == Some(choice)) {
            return Ok(choice);
        }
        let nearest = value
            .as_str()
            .and_then(|text| suggest(text, choices.iter().copied()));
        Err(ParameterError::new(
            field,
            format!(
                "{value} is not one of {}{}",
                choices.join(", "),
                nearest.map_or(String::new(), |name| format!("; did you mean {name}?"))
            ),
        ))
    }

    /// A whole number, `default` if absent.
    ///
    /// # Errors
    /// When it is given and not a whole number of at least 0.
    pub fn u64_or(&self, field: &str, default: u64) -> Result<u64, ParameterError> {
        self.u64_within(field, Some(default), 0..=u64::MAX)
    }

    /// A whole number within `range`; `default` if absent, which is an error where there is no default.
    ///
    /// # Errors
    /// When it is missing, not a whole number or out of range.
    pub fn u64_within(
        &self,
        field: &str,
        default: Option<u64>,
        range: RangeInclusive<u64>,
    ) -> Result<u64, ParameterError> {
        let wanted = if *range.end() == u64::MAX {
            format!("a whole number of at least {}", range.start())
        } else {
            format!("a whole number from {} to {}", range.start(), range.end())
        };
        match self.value(field) {
            Some(value) => whole(value)
                .filter(|number| range.contains(number))
                .ok_or_else(|| wrong(field, value, &wanted)),
            None => default.ok_or_else(|| ParameterError::new(field, format!("missing; give {wanted}"))),
        }
    }

    /// A whole number of at least 1, if given.
    ///
    /// # Errors
    /// When it is given and not such a number.
    pub fn optional_count(&self, field: &str) -> Result<Option<u64>, ParameterError> {
        self.value(field)
            .map(|_| self.u64_within(field, None, 1..=u64::MAX))
            .transpose()
    }

    /// A number, `default` if absent.
    ///
    /// # Errors
    /// When it is given and not a number.
    pub fn f64_or(&self, field: &str, default: f64) -> Result<f64, ParameterError> {
        self.f64_within(field, default, f64::MIN..=f64::MAX)
    }

    /// A number within `range`, `default` if absent.
    ///
    /// # Errors
    /// When it is given and not a number, or out of range.
    pub fn f64_within(
        &self,
        field: &str,
        default: f64,
        range: RangeInclusive<f64>,
    ) -> Result<f64, ParameterError> {
        let Some(value) = self.value(field) else {
            return Ok(default);
        };
        let wanted = if *range.start() == f64::MIN && *range.end() == f64::MAX {
            "a number".to_owned()
        } else {
            format!("a number from {} to {}", range.start(), range.end())
        };
        value
            .as_f64()
            .filter(|number| range.contains(number))
            .ok_or_else(|| wrong(field, value, &wanted))
    }

    /// True or false, `default` if absent.
    ///
    /// # Errors
    /// When it is given and neither.
    pub fn bool_or(&self, field: &str, default: bool) -> Result<bool, ParameterError> {
        self.value(field).map_or(Ok(default), |value| {
            value
                .as_bool()
                .ok_or_else(|| wrong(field, value, "true or false"))
        })
    }

    /// A path as the container sees it, turned into the one on this machine; it must be given.
    ///
    /// # Errors
    /// When it is absent, empty or not a string.
    pub fn path(&self, field: &str, example: &str) -> Result<PathBuf, ParameterError> {
        let given = self.required_string(field, example)?;
        Ok(self.paths.apply(Path::new(&given)))
    }

    /// Refuses every field that was given and never asked for. Call it last.
    ///
    /// # Errors
    /// Names the first such field and the nearest known one.
    pub fn reject_unknown(&self) -> Result<(), ParameterError> {
        let asked = self.asked.borrow();
        let Some(unknown) = self.fields.keys().find(|field| !asked.contains(field)) else {
            return Ok(());
        };
        let known = asked.iter().map(String::as_str);
        let problem = match suggest(unknown, known) {
            Some(nearest) => format!("not a parameter of this task; did you mean {nearest}?"),
            None if asked.is_empty() => "not a parameter of this task; it has none".to_owned(),
            None => format!("not a parameter of this task; it has {}", asked.join(", ")),
        };
        Err(ParameterError::new(unknown, problem))
    }

    fn string(&self, field: &str) -> Result<Option<String>, ParameterError> {
        self.value(field)
            .map(|value| {
                value
                    .as_str()
                    .map(str::to_owned)
                    .ok_or_else(|| wrong(field, value, "a string"))
            })
            .transpose()
    }
}

/// The name nearest to `given`, if it is near enough to be meant: by edits, or up to upper and lower case
/// and separators.
pub(crate) fn suggest<'a>(given: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| -> Vec<char> {
        text.chars()
            .filter(|c| c.is_alphanumeric())
            .flat_map(char::to_lowercase)
            .collect()
    };
    let given = plain(given);
    names
        .map(|name| (edits(&given, &plain(name)), name))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4)
        .map(|(_, name)| name)
}

/// Edits (insertions, deletions, replacements, swaps of neighbours) between two texts: the optimal string
/// alignment distance.
fn edits(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y))
                .min(last[j + 1] + 1)
                .min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or_default()
}

/// A whole number, also when it is written as `100.0`: JSON does not tell the two apart.
fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && (0.0..9e15).contains(&number)).then_some(number as u64)
    })
}

fn wrong(field: &str, value: &Value, wanted: &str) -> ParameterError {
    ParameterError::new(field, format!("{value} does not fit; give {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn given(value: &Value) -> GivenParameters {
        let mut paths = PathMap::default();
        paths.set("/data", "/home/me/d");
        GivenParameters::new(value, paths).unwrap()
    }

    #[test]
    fn values_come_in_their_types_and_absent_ones_as_defaults() {
        let given = given(&json!({
            "model": "cnn", "data": "/data/x", "width": 128, "layers": 4.0, "dropout": 0.5, "rate": 1,
            "augment": true, "limit": 10, "nothing": null,
        }));
        assert_eq!(given.string_or("model", "mlp").unwrap(), "cnn");
        assert_eq!(given.choice("model", &["mlp", "cnn"]).unwrap(), "cnn");
        assert_eq!(given.choice("kind", &["mlp", "cnn"]).unwrap(), "mlp");
        assert_eq!(given.path("data", "/data").unwrap(), Path::new("/home/me/d/x"));
        assert_eq!(given.u64_or("width", 1).unwrap(), 128);
        assert_eq!(given.u64_within("layers", None, 1..=4).unwrap(), 4);
        assert_eq!(given.u64_or("heads", 8).unwrap(), 8);
        assert_eq!(given.f64_within("dropout", 0.0, 0.0..=0.9).unwrap(), 0.5);
        assert_eq!(given.f64_or("rate", 0.0).unwrap(), 1.0);
        assert!(given.bool_or("augment", false).unwrap());
        assert_eq!(given.optional_count("limit").unwrap(), Some(10));
        assert_eq!(given.optional_count("testLimit").unwrap(), None);
        assert_eq!(given.u64_or("nothing", 3).unwrap(), 3);
        given.reject_unknown().unwrap();
    }

    #[test]
    fn errors_name_the_field_the_value_and_the_way_out() {
        let given = given(&json!({"a": "x", "b": -1, "c": 2.5, "d": "", "e": 7, "f": "cn", "g": [1]}));
        let text = |error: ParameterError| error.to_string();
        for (got, expected) in [
            (
                text(given.u64_or("a", 1).unwrap_err()),
                "spec.task.parameters.a: \"x\" does not fit; give a whole number of at least 0",
            ),
            (
                text(given.u64_within("b", None, 1..=9).unwrap_err()),
                "spec.task.parameters.b: -1 does not fit; give a whole number from 1 to 9",
            ),
            (
                text(given.f64_within("c", 0.0, 0.0..=1.0).unwrap_err()),
                "spec.task.parameters.c: 2.5 does not fit; give a number from 0 to 1",
            ),
            (
                text(given.u64_or("c", 0).unwrap_err()),
                "spec.task.parameters.c: 2.5 does not fit; give a whole number of at least 0",
            ),
            (
                text(given.required_string("d", "/data").unwrap_err()),
                "spec.task.parameters.d: empty; give for example /data",
            ),
            (
                text(given.path("missing", "/data").unwrap_err()),
                "spec.task.parameters.missing: missing; give for example /data",
            ),
            (
                text(given.bool_or("e", false).unwrap_err()),
                "spec.task.parameters.e: 7 does not fit; give true or false",
            ),
            (
                text(given.choice("f", &["mlp", "cnn"]).unwrap_err()),
                "spec.task.parameters.f: \"cn\" is not one of mlp, cnn; did you mean cnn?",
            ),
            (
                text(given.string_or("g", "").unwrap_err()),
                "spec.task.parameters.g: [1] does not fit; give a string",
            ),
            (
                text(given.u64_within("size", None, 1..=u64::MAX).unwrap_err()),
                "spec.task.parameters.size: missing; give a whole number of at least 1",
            ),
        ] {
            assert_eq!(got, expected);
        }
        let error = GivenParameters::new(&json!([1]), PathMap::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "spec.task.parameters: [1] does not fit; give an object such as {model: cnn}"
        );
    }

    #[test]
    fn unknown_fields_are_refused_with_the_nearest_known_one() {
        let ask = |fields: Value| {
            let given = given(&fields);
            given.f64_or("dropout", 0.0).unwrap();
            given.optional_count("testLimit").unwrap();
            given.reject_unknown().map_err(|error| error.to_string())
        };
        assert_eq!(ask(json!({"dropout": 0.5})), Ok(()));
        for (field, expected) in [
            ("dorpout", "not a parameter of this task; did you mean dropout?"),
            (
                "test_limit",
                "not a parameter of this task; did you mean testLimit?",
            ),
            (
                "epochs",
                "not a parameter of this task; it has dropout, testLimit",
            ),
        ] {
            assert_eq!(
                ask(json!({field: 1})),
                Err(format!("spec.task.parameters.{field}: {expected}"))
            );
        }
    }
}
