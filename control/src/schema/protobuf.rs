//! Upstream's binary form of a few kinds: kubectl sends it when it makes an object from its command line alone
//! (`create namespace`, `create secret` …). A kind that is new here is one table of its fields' numbers.

use base64::Engine as _;
use serde_json::{Map, Value, json};

/// What every body in this form begins with.
pub(super) const MAGIC: &[u8] = b"k8s\0";

/// What a field holds.
#[derive(Debug, Clone, Copy)]
enum Holds {
    Text,
    Bytes,
    Integer,
    Truth,
    Time,
    IntOrString,
    Message(&'static [Field]),
    /// Keys are texts.
    Map(&'static Holds),
}

#[derive(Debug, Clone, Copy)]
struct Field {
    number: u64,
    name: &'static str,
    holds: Holds,
    /// A list of such values.
    repeated: bool,
    /// An empty value says something, as for `immutable: false`; elsewhere it is left out.
    keeps_empty: bool,
}

const fn one(number: u64, name: &'static str, holds: Holds) -> Field {
    Field { number, name, holds, repeated: false, keeps_empty: false }
}

const fn maybe(number: u64, name: &'static str, holds: Holds) -> Field {
    Field { number, name, holds, repeated: false, keeps_empty: true }
}

const fn many(number: u64, name: &'static str, holds: Holds) -> Field {
    Field { number, name, holds, repeated: true, keeps_empty: true }
}

use Holds::{Bytes, IntOrString, Integer, Message, Text, Time, Truth};

const TEXTS: Holds = Holds::Map(&Text);

const OWNER: &[Field] = &[
    one(1, "kind", Text),
    one(3, "name", Text),
    one(4, "uid", Text),
    one(5, "apiVersion", Text),
    maybe(6, "controller", Truth),
    maybe(7, "blockOwnerDeletion", Truth),
];

const METADATA: Field = one(
    1,
    "metadata",
    Message(&[
        one(1, "name", Text),
        one(2, "generateName", Text),
        one(3, "namespace", Text),
        one(5, "uid", Text),
        one(6, "resourceVersion", Text),
        one(7, "generation", Integer),
        one(8, "creationTimestamp", Time),
        one(9, "deletionTimestamp", Time),
        maybe(10, "deletionGracePeriodSeconds", Integer),
        one(11, "labels", TEXTS),
        one(12, "annotations", TEXTS),
        many(13, "ownerReferences", Message(OWNER)),
        many(14, "finalizers", Text),
    ]),
);

const CONFIG_MAP: &[Field] =
    &[METADATA, one(2, "data", TEXTS), one(3, "binaryData", Holds::Map(&Bytes)), maybe(4, "immutable", Truth)];

const SECRET: &[Field] = &[
    METADATA,
    one(2, "data", Holds::Map(&Bytes)),
    one(3, "type", Text),
    one(4, "stringData", TEXTS),
    maybe(5, "immutable", Truth),
];

const NAMESPACE: &[Field] = &[METADATA, one(2, "spec", Message(&[many(1, "finalizers", Text)]))];

const SERVICE_ACCOUNT: &[Field] = &[
    METADATA,
    many(2, "secrets", Message(&[one(1, "kind", Text), one(2, "namespace", Text), one(3, "name", Text)])),
    many(3, "imagePullSecrets", Message(&[one(1, "name", Text)])),
    maybe(4, "automountServiceAccountToken", Truth),
];

const SERVICE_PORT: &[Field] = &[
    one(1, "name", Text),
    one(2, "protocol", Text),
    one(3, "port", Integer),
    one(4, "targetPort", IntOrString),
    one(5, "nodePort", Integer),
    maybe(6, "appProtocol", Text),
];

const AFFINITY: &[Field] = &[one(1, "clientIP", Message(&[maybe(1, "timeoutSeconds", Integer)]))];

const SERVICE: &[Field] = &[
    METADATA,
    one(
        2,
        "spec",
        Message(&[
            many(1, "ports", Message(SERVICE_PORT)),
            one(2, "selector", TEXTS),
            one(3, "clusterIP", Text),
            one(4, "type", Text),
            many(5, "externalIPs", Text),
            one(7, "sessionAffinity", Text),
            one(8, "loadBalancerIP", Text),
            many(9, "loadBalancerSourceRanges", Text),
            one(10, "externalName", Text),
            one(11, "externalTrafficPolicy", Text),
            one(12, "healthCheckNodePort", Integer),
            one(13, "publishNotReadyAddresses", Truth),
            one(14, "sessionAffinityConfig", Message(AFFINITY)),
            maybe(17, "ipFamilyPolicy", Text),
            many(18, "clusterIPs", Text),
            many(19, "ipFamilies", Text),
            maybe(20, "allocateLoadBalancerNodePorts", Truth),
            maybe(21, "loadBalancerClass", Text),
            maybe(22, "internalTrafficPolicy", Text),
            maybe(23, "trafficDistribution", Text),
        ]),
    ),
];

const DELETE_OPTIONS: &[Field] = &[
    maybe(1, "gracePeriodSeconds", Integer),
    one(2, "preconditions", Message(&[maybe(1, "uid", Text), maybe(2, "resourceVersion", Text)])),
    maybe(3, "orphanDependents", Truth),
    maybe(4, "propagationPolicy", Text),
    many(5, "dryRun", Text),
];

const EVICTION: &[Field] = &[METADATA, one(2, "deleteOptions", Message(DELETE_OPTIONS))];

const BOUND_OBJECT: &[Field] =
    &[one(1, "kind", Text), one(2, "apiVersion", Text), one(3, "name", Text), one(4, "uid", Text)];

const TOKEN_REQUEST: &[Field] = &[
    METADATA,
    one(
        2,
        "spec",
        Message(&[
            many(1, "audiences", Text),
            one(3, "boundObjectRef", Message(BOUND_OBJECT)),
            maybe(4, "expirationSeconds", Integer),
        ]),
    ),
];

const RESOURCE_ATTRIBUTES: &[Field] = &[
    one(1, "namespace", Text),
    one(2, "verb", Text),
    one(3, "group", Text),
    one(4, "version", Text),
    one(5, "resource", Text),
    one(6, "subresource", Text),
    one(7, "name", Text),
];
const PATH_ATTRIBUTES: &[Field] = &[one(1, "path", Text), one(2, "verb", Text)];

const OWN_ACCESS_REVIEW: &[Field] = &[
    METADATA,
    one(
        2,
        "spec",
        Message(&[
            one(1, "resourceAttributes", Message(RESOURCE_ATTRIBUTES)),
            one(2, "nonResourceAttributes", Message(PATH_ATTRIBUTES)),
        ]),
    ),
];

fn fields_of(kind: &str) -> Option<&'static [Field]> {
    Some(match kind {
        "ConfigMap" => CONFIG_MAP,
        "DeleteOptions" => DELETE_OPTIONS,
        "Eviction" => EVICTION,
        "Namespace" => NAMESPACE,
        "Secret" => SECRET,
        "SelfSubjectAccessReview" => OWN_ACCESS_REVIEW,
        "SelfSubjectReview" => &[METADATA],
        "Service" => SERVICE,
        "ServiceAccount" => SERVICE_ACCOUNT,
        "TokenRequest" => TOKEN_REQUEST,
        _ => return None,
    })
}

/// Reads a body that begins with [`MAGIC`].
pub(super) fn decode(bytes: &[u8]) -> Result<Value, String> {
    const ENVELOPE: &[Field] =
        &[one(1, "type", Message(&[one(1, "apiVersion", Text), one(2, "kind", Text)])), one(2, "raw", Bytes)];
    let broken = |what: &str| format!("protobuf parse error: {what}");
    let body = bytes.strip_prefix(MAGIC).ok_or_else(|| broken("the body does not begin with the magic number"))?;
    let envelope = message(ENVELOPE, body).map_err(broken)?;
    let kind = envelope["type"]["kind"].as_str().unwrap_or_default();
    let fields = fields_of(kind).ok_or_else(|| {
        format!(
            "objects of kind {kind:?} are not read in the protobuf form: send application/json, as kubectl does with -f"
        )
    })?;
    let raw = base64::engine::general_purpose::STANDARD.decode(envelope["raw"].as_str().unwrap_or_default());
    let mut object = message(fields, &raw.unwrap_or_default()).map_err(broken)?;
    object["apiVersion"] = envelope["type"]["apiVersion"].clone();
    object["kind"] = json!(kind);
    Ok(object)
}

/// One value as it stands in the body.
#[derive(Debug, Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Takes a number of variable length off the front.
fn number(rest: &mut &[u8]) -> Result<u64, &'static str> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or("the body ends inside a number")?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number is too long")
}

/// Takes `length` bytes off the front.
fn take<'a>(rest: &mut &'a [u8], length: u64) -> Result<&'a [u8], &'static str> {
    let (taken, after) =
        usize::try_from(length).ok().and_then(|l| rest.split_at_checked(l)).ok_or("the body ends inside a field")?;
    *rest = after;
    Ok(taken)
}

fn next<'a>(rest: &mut &'a [u8]) -> Result<(u64, Wire<'a>), &'static str> {
    let tag = number(rest)?;
    let value = match tag & 7 {
        0 => Wire::Number(number(rest)?),
        1 => Wire::Bytes(take(rest, 8)?),
        2 => {
            let length = number(rest)?;
            Wire::Bytes(take(rest, length)?)
        }
        5 => Wire::Bytes(take(rest, 4)?),
        _ => return Err("a field has a wire type that is not in use"),
    };
    Ok((tag >> 3, value))
}

fn message(fields: &[Field], body: &[u8]) -> Result<Value, &'static str> {
    let mut out = Map::new();
    let mut rest = body;
    while !rest.is_empty() {
        let (number, wire) = next(&mut rest)?;
        let Some(field) = fields.iter().find(|f| f.number == number) else { continue };
        if let Holds::Map(of) = field.holds {
            let entry = out.entry(field.name).or_insert_with(|| json!({}));
            let (key, value) = pair(of, wire)?;
            entry[key] = value;
            continue;
        }
        let value = value(&field.holds, wire)?;
        if field.repeated {
            if let Value::Array(list) = out.entry(field.name).or_insert_with(|| json!([])) {
                list.push(value);
            }
        } else if field.keeps_empty || !is_empty(&value) {
            out.insert(field.name.to_owned(), value);
        }
    }
    Ok(Value::Object(out))
}

/// An entry of a map.
fn pair(of: &Holds, wire: Wire<'_>) -> Result<(String, Value), &'static str> {
    let Wire::Bytes(mut rest) = wire else { return Err("an entry of a map is no message") };
    let (mut key, mut held) = (String::new(), Value::String(String::new()));
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, wire) => key = text(wire)?,
            (2, wire) => held = value(of, wire)?,
            _ => {}
        }
    }
    Ok((key, held))
}

fn value(holds: &Holds, wire: Wire<'_>) -> Result<Value, &'static str> {
    Ok(match (holds, wire) {
        (Text, wire) => Value::String(text(wire)?),
        (Bytes, Wire::Bytes(bytes)) => json!(base64::engine::general_purpose::STANDARD.encode(bytes)),
        (Integer, Wire::Number(number)) => json!(number.cast_signed()),
        (Truth, Wire::Number(number)) => json!(number != 0),
        (Message(fields), Wire::Bytes(body)) => message(fields, body)?,
        (Time, Wire::Bytes(body)) => {
            let time = message(&[one(1, "seconds", Integer)], body)?;
            match time["seconds"].as_i64().map(jiff::Timestamp::from_second) {
                Some(Ok(time)) => json!(time.to_string()),
                Some(Err(_)) => return Err("a point in time is out of range"),
                None => Value::Null,
            }
        }
        (IntOrString, Wire::Bytes(body)) => {
            let either =
                message(&[one(1, "type", Integer), maybe(2, "number", Integer), maybe(3, "text", Text)], body)?;
            if either["type"] == 1 { either["text"].clone() } else { either["number"].clone() }
        }
        _ => return Err("a field holds something else than its kind says"),
    })
}

fn text(wire: Wire<'_>) -> Result<String, &'static str> {
    let Wire::Bytes(bytes) = wire else { return Err("a text is a number") };
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "a text is not UTF-8")
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
