//! Names in paths of JSON patches: upstream's `library/jsonpatch.go`.

use super::{Row, global};
use crate::{
    cost::Cost,
    error::EvalError,
    value::{Outcome, Value},
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    global("jsonpatch.escapeKey", "string_jsonpatch_escapeKey_string", "string -> string", Cost::Traverse, escape_key),
];

fn escape_key<'a>(args: &[Value<'a>]) -> Outcome<'a> {
    match args {
        [Value::String(key)] => Ok(Value::text(key.replace('~', "~0").replace('/', "~1"))),
        _ => Err(EvalError::no_such_overload()),
    }
}
