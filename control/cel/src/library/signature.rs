//! Signatures of the table as types.

use crate::types::{Param, Type};

/// Reads `string, list(T) -> map(K, V)`. What cannot be read is dyn; a test reads all.
pub(super) fn parse(text: &str) -> (Vec<Type>, Type) {
    let (args, result) = text.split_once("->").unwrap_or(("", text));
    (list(args), one(result))
}

fn list(text: &str) -> Vec<Type> {
    let (mut depth, mut begin, mut types) = (0, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                types.push(one(&text[begin..at]));
                begin = at + 1;
            }
            _ => {}
        }
    }
    if !text[begin..].trim().is_empty() {
        types.push(one(&text[begin..]));
    }
    types
}

fn one(text: &str) -> Type {
    let text = text.trim();
    if let Some((name, params)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let mut params = list(params).into_iter();
        let mut next = || params.next().unwrap_or(Type::Dyn);
        return match name {
            "list" => Type::list(next()),
            "map" => {
                let key = next();
                Type::map(key, next())
            }
            "optional" => Type::optional(next()),
            _ => Type::type_of(next()),
        };
    }
    let object = |name: &str| Type::object(&format!("kubernetes.{name}"));
    match text {
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "duration" => Type::Duration,
        "timestamp" => Type::Timestamp,
        "quantity" => object("Quantity"),
        "url" => object("URL"),
        "semver" => object("Semver"),
        "format" => object("NamedFormat"),
        "authorizer" => object("authorization.Authorizer"),
        "pathcheck" => object("authorization.PathCheck"),
        "groupcheck" => object("authorization.GroupCheck"),
        "resourcecheck" => object("authorization.ResourceCheck"),
        "decision" => object("authorization.Decision"),
        "ip" => Type::Opaque("net.IP".into(), [].into()),
        "cidr" => Type::Opaque("net.CIDR".into(), [].into()),
        text => match text.chars().next().filter(|_| text.len() == 1) {
            Some(letter) => Type::Param(Param::Named(letter)),
            None => Type::Dyn,
        },
    }
}
