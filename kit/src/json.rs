//! Decodes the API's types by one instantiation of serde's code. A type has its own machine code for each kind of
//! source (text, bytes, values, YAML), tens of kilobytes for a Pod each time, so everything is turned into text first:
//! kube's client has that instantiation anyway.

use serde::{de::DeserializeOwned, de::Error as _};
use serde_json::{Error, Value};

/// Decodes `bytes`.
///
/// # Errors
/// When they are not JSON in UTF-8, or not of this type.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_str(std::str::from_utf8(bytes).map_err(Error::custom)?)
}

/// Decodes `value`.
///
/// # Errors
/// When it is not of this type; without a position, which would be one in the intermediate text.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, Error> {
    serde_json::from_str(&value.to_string()).map_err(|error| {
        let place = format!(" at line {} column {}", error.line(), error.column());
        let text = error.to_string();
        Error::custom(text.strip_suffix(&place).unwrap_or(&text))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_read_is_told_as_serde_json_does() {
        type Numbers = BTreeMap<String, u8>;
        assert_eq!(from_slice::<Numbers>(br#"{"a":1}"#).unwrap()["a"], 1);
        assert!(from_slice::<String>(b"\"\xff\"").unwrap_err().to_string().contains("invalid utf-8"));
        assert!(from_slice::<Numbers>(b"{} {}").is_err());
        assert_eq!(from_value::<Numbers>(&json!({"a": 1})).unwrap()["a"], 1);
        for wrong in [json!({"a": "x"}), json!([1]), json!({"a": 300})] {
            let ours = from_value::<Numbers>(&wrong).unwrap_err().to_string();
            assert_eq!(ours, serde_json::from_value::<Numbers>(wrong).unwrap_err().to_string());
        }
    }
}
