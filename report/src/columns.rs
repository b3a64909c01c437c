//! Arrays of objects as columns: a run of ten minutes has a hundred thousand objects with the same
//! dozen keys, which would be most of its page.
//!
//! `[{"a": 1, "b": 0}, {"a": 2, "b": 0}]` becomes `{"#": 2, "a": [1, 2], "b": {"=": 0}}`: `#` says
//! how many there were, `=` that a column has one value all along. No key of ours begins like that.
//! What has other keys than its neighbours stays as it is. Nothing is lost.

use serde_json::{Map, Value};

const COUNT: &str = "#";
const SAME: &str = "=";

/// The same with columns.
pub fn into_columns(value: Value) -> Value {
    match value {
        Value::Array(items) => match columns(&items) {
            Some(table) => table,
            None => Value::Array(items.into_iter().map(into_columns).collect()),
        },
        Value::Object(map) => {
            let map = map.into_iter().map(|(k, v)| (k, into_columns(v)));
            Value::Object(map.collect())
        }
        other => other,
    }
}

fn columns(items: &[Value]) -> Option<Value> {
    let first = items.first()?.as_object()?;
    if items.len() < 2 || first.is_empty() || first.keys().any(|k| k == COUNT) {
        return None;
    }
    let rows: Vec<&Map<String, Value>> = items
        .iter()
        .map(|i| i.as_object().filter(|o| o.len() == first.len()))
        .collect::<Option<_>>()?;
    let mut table = Map::new();
    table.insert(COUNT.to_owned(), items.len().into());
    for key in first.keys() {
        let column: Vec<Value> = rows
            .iter()
            .map(|r| r.get(key).cloned())
            .collect::<Option<_>>()?;
        let column = if column.iter().all(|v| *v == column[0]) {
            let mut same = Map::new();
            same.insert(SAME.to_owned(), into_columns(column[0].clone()));
            Value::Object(same)
        } else {
            into_columns(Value::Array(column))
        };
        table.insert(key.clone(), column);
    }
    Some(Value::Object(table))
}

/// The same without columns.
pub fn out_of_columns(value: Value) -> Result<Value, String> {
    match value {
        Value::Array(items) => {
            let items: Result<_, _> = items.into_iter().map(out_of_columns).collect();
            Ok(Value::Array(items?))
        }
        Value::Object(mut map) => match map.remove(COUNT) {
            Some(count) => rows(&count, map),
            None => {
                let map = map.into_iter().map(|(k, v)| Ok((k, out_of_columns(v)?)));
                Ok(Value::Object(map.collect::<Result<_, String>>()?))
            }
        },
        other => Ok(other),
    }
}

fn rows(count: &Value, table: Map<String, Value>) -> Result<Value, String> {
    /// More than any run has, and few enough to hold.
    const MOST: u64 = 10_000_000;
    let count = count.as_u64().filter(|n| *n <= MOST);
    let count = count.ok_or("a table of columns does not say how many rows it has")? as usize;
    let mut rows = vec![Map::new(); count];
    for (key, column) in table {
        let values = match column {
            Value::Object(mut same) if same.len() == 1 && same.contains_key(SAME) => {
                let value = same.remove(SAME).unwrap_or_default();
                vec![out_of_columns(value)?; count]
            }
            other => match out_of_columns(other)? {
                Value::Array(values) => values,
                _ => return Err(format!("the column `{key}` is no list")),
            },
        };
        if values.len() != count {
            let n = values.len();
            return Err(format!("the column `{key}` has {n} rows, not {count}"));
        }
        for (row, value) in rows.iter_mut().zip(values) {
            row.insert(key.clone(), value);
        }
    }
    Ok(Value::Array(rows.into_iter().map(Value::Object).collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whatever_goes_in_comes_out() {
        for value in [
            json!(null),
            json!([]),
            json!([{"a": 1}]),
            json!([{"a": 1, "b": 0}, {"a": 2, "b": 0}]),
            json!([{"a": 1}, {"b": 0}]),
            json!([{"a": [{"x": 1}, {"x": 2}]}, {"a": [{"x": 1}, {"x": 2}]}]),
            json!({"k": [{"a": null, "l": [[1, 2], [3, 4]]}, {"a": 0.5, "l": []}], "n": "="}),
        ] {
            let packed = into_columns(value.clone());
            assert_eq!(out_of_columns(packed).expect("unpacked"), value);
        }
        let packed = into_columns(json!([{"a": 1, "b": 0}, {"a": 2, "b": 0}]));
        assert_eq!(packed, json!({"#": 2, "a": [1, 2], "b": {"=": 0}}));
    }

    #[test]
    fn a_table_that_does_not_hold_together_is_an_error() {
        for (bad, part) in [
            (json!({"#": "x"}), "how many"),
            (json!({"#": 2, "a": [1]}), "has 1 rows, not 2"),
            (json!({"#": 2, "a": 7}), "no list"),
        ] {
            let error = out_of_columns(bad).expect_err(part);
            assert!(error.contains(part), "{error}");
        }
    }
}
