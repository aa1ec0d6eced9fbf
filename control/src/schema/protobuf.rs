//! Decodes upstream's protobuf encoding of a few kinds: kubectl sends it when it creates an object from the command
//! line alone (`create namespace`, `create secret` …). A further kind is one table of field numbers.

use base64::Engine as _;
use serde_json::{Map, Value, json};

/// The magic prefix of the encoding.
pub(super) const MAGIC: &[u8] = b"k8s\0";

/// The type of a field.
#[derive(Debug, Clone, Copy)]
enum ProtoType {
    Str,
    Bytes,
    Integer,
    Bool,
    Time,
    IntOrString,
    Message(&'static [Field]),
    /// Keys are strings.
    Map(&'static ProtoType),
}

#[derive(Debug, Clone, Copy)]
struct Field {
    number: u64,
    name: &'static str,
    proto_type: ProtoType,
    /// A repeated field.
    repeated: bool,
    /// The zero value is significant, as for `immutable: false`; in other fields it is left out.
    explicit_presence: bool,
}

const fn singular(number: u64, name: &'static str, proto_type: ProtoType) -> Field {
    Field { number, name, proto_type, repeated: false, explicit_presence: false }
}

const fn optional(number: u64, name: &'static str, proto_type: ProtoType) -> Field {
    Field { number, name, proto_type, repeated: false, explicit_presence: true }
}

const fn repeated(number: u64, name: &'static str, proto_type: ProtoType) -> Field {
    Field { number, name, proto_type, repeated: true, explicit_presence: true }
}

use ProtoType::{Bool, Bytes, IntOrString, Integer, Message, Str, Time};

const STRING_MAP: ProtoType = ProtoType::Map(&Str);

const OWNER: &[Field] = &[
    singular(1, "kind", Str),
    singular(3, "name", Str),
    singular(4, "uid", Str),
    singular(5, "apiVersion", Str),
    optional(6, "controller", Bool),
    optional(7, "blockOwnerDeletion", Bool),
];

const METADATA: Field = singular(
    1,
    "metadata",
    Message(&[
        singular(1, "name", Str),
        singular(2, "generateName", Str),
        singular(3, "namespace", Str),
        singular(5, "uid", Str),
        singular(6, "resourceVersion", Str),
        singular(7, "generation", Integer),
        singular(8, "creationTimestamp", Time),
        singular(9, "deletionTimestamp", Time),
        optional(10, "deletionGracePeriodSeconds", Integer),
        singular(11, "labels", STRING_MAP),
        singular(12, "annotations", STRING_MAP),
        repeated(13, "ownerReferences", Message(OWNER)),
        repeated(14, "finalizers", Str),
    ]),
);

const CONFIG_MAP: &[Field] = &[
    METADATA,
    singular(2, "data", STRING_MAP),
    singular(3, "binaryData", ProtoType::Map(&Bytes)),
    optional(4, "immutable", Bool),
];

const SECRET: &[Field] = &[
    METADATA,
    singular(2, "data", ProtoType::Map(&Bytes)),
    singular(3, "type", Str),
    singular(4, "stringData", STRING_MAP),
    optional(5, "immutable", Bool),
];

const NAMESPACE: &[Field] = &[METADATA, singular(2, "spec", Message(&[repeated(1, "finalizers", Str)]))];

const SERVICE_ACCOUNT: &[Field] = &[
    METADATA,
    repeated(
        2,
        "secrets",
        Message(&[singular(1, "kind", Str), singular(2, "namespace", Str), singular(3, "name", Str)]),
    ),
    repeated(3, "imagePullSecrets", Message(&[singular(1, "name", Str)])),
    optional(4, "automountServiceAccountToken", Bool),
];

const SERVICE_PORT: &[Field] = &[
    singular(1, "name", Str),
    singular(2, "protocol", Str),
    singular(3, "port", Integer),
    singular(4, "targetPort", IntOrString),
    singular(5, "nodePort", Integer),
    optional(6, "appProtocol", Str),
];

const AFFINITY: &[Field] = &[singular(1, "clientIP", Message(&[optional(1, "timeoutSeconds", Integer)]))];

const SERVICE: &[Field] = &[
    METADATA,
    singular(
        2,
        "spec",
        Message(&[
            repeated(1, "ports", Message(SERVICE_PORT)),
            singular(2, "selector", STRING_MAP),
            singular(3, "clusterIP", Str),
            singular(4, "type", Str),
            repeated(5, "externalIPs", Str),
            singular(7, "sessionAffinity", Str),
            singular(8, "loadBalancerIP", Str),
            repeated(9, "loadBalancerSourceRanges", Str),
            singular(10, "externalName", Str),
            singular(11, "externalTrafficPolicy", Str),
            singular(12, "healthCheckNodePort", Integer),
            singular(13, "publishNotReadyAddresses", Bool),
            singular(14, "sessionAffinityConfig", Message(AFFINITY)),
            optional(17, "ipFamilyPolicy", Str),
            repeated(18, "clusterIPs", Str),
            repeated(19, "ipFamilies", Str),
            optional(20, "allocateLoadBalancerNodePorts", Bool),
            optional(21, "loadBalancerClass", Str),
            optional(22, "internalTrafficPolicy", Str),
            optional(23, "trafficDistribution", Str),
        ]),
    ),
];

const DELETE_OPTIONS: &[Field] = &[
    optional(1, "gracePeriodSeconds", Integer),
    singular(2, "preconditions", Message(&[optional(1, "uid", Str), optional(2, "resourceVersion", Str)])),
    optional(3, "orphanDependents", Bool),
    optional(4, "propagationPolicy", Str),
    repeated(5, "dryRun", Str),
];

const EVICTION: &[Field] = &[METADATA, singular(2, "deleteOptions", Message(DELETE_OPTIONS))];

const BOUND_OBJECT: &[Field] =
    &[singular(1, "kind", Str), singular(2, "apiVersion", Str), singular(3, "name", Str), singular(4, "uid", Str)];

const TOKEN_REQUEST: &[Field] = &[
    METADATA,
    singular(
        2,
        "spec",
        Message(&[
            repeated(1, "audiences", Str),
            singular(3, "boundObjectRef", Message(BOUND_OBJECT)),
            optional(4, "expirationSeconds", Integer),
        ]),
    ),
];

const RESOURCE_ATTRIBUTES: &[Field] = &[
    singular(1, "namespace", Str),
    singular(2, "verb", Str),
    singular(3, "group", Str),
    singular(4, "version", Str),
    singular(5, "resource", Str),
    singular(6, "subresource", Str),
    singular(7, "name", Str),
];
const PATH_ATTRIBUTES: &[Field] = &[singular(1, "path", Str), singular(2, "verb", Str)];

const OWN_ACCESS_REVIEW: &[Field] = &[
    METADATA,
    singular(
        2,
        "spec",
        Message(&[
            singular(1, "resourceAttributes", Message(RESOURCE_ATTRIBUTES)),
            singular(2, "nonResourceAttributes", Message(PATH_ATTRIBUTES)),
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

/// Decodes a body that begins with [`MAGIC`].
pub(super) fn decode(bytes: &[u8]) -> Result<Value, String> {
    const ENVELOPE: &[Field] = &[
        singular(1, "type", Message(&[singular(1, "apiVersion", Str), singular(2, "kind", Str)])),
        singular(2, "raw", Bytes),
    ];
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

/// One value on the wire.
#[derive(Debug, Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Reads a varint.
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

/// Reads `length` bytes.
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
        if let ProtoType::Map(of) = field.proto_type {
            let entry = out.entry(field.name).or_insert_with(|| json!({}));
            let (key, value) = pair(of, wire)?;
            entry[key] = value;
            continue;
        }
        let value = value(&field.proto_type, wire)?;
        if field.repeated {
            if let Value::Array(list) = out.entry(field.name).or_insert_with(|| json!([])) {
                list.push(value);
            }
        } else if field.explicit_presence || !is_empty(&value) {
            out.insert(field.name.to_owned(), value);
        }
    }
    Ok(Value::Object(out))
}

/// A map entry.
fn pair(of: &ProtoType, wire: Wire<'_>) -> Result<(String, Value), &'static str> {
    let Wire::Bytes(mut rest) = wire else { return Err("an entry of a map is no message") };
    let (mut key, mut entry) = (String::new(), Value::String(String::new()));
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, wire) => key = text(wire)?,
            (2, wire) => entry = value(of, wire)?,
            _ => {}
        }
    }
    Ok((key, entry))
}

fn value(proto_type: &ProtoType, wire: Wire<'_>) -> Result<Value, &'static str> {
    Ok(match (proto_type, wire) {
        (Str, wire) => Value::String(text(wire)?),
        (Bytes, Wire::Bytes(bytes)) => json!(base64::engine::general_purpose::STANDARD.encode(bytes)),
        (Integer, Wire::Number(number)) => json!(number.cast_signed()),
        (Bool, Wire::Number(number)) => json!(number != 0),
        (Message(fields), Wire::Bytes(body)) => message(fields, body)?,
        (Time, Wire::Bytes(body)) => {
            let time = message(&[singular(1, "seconds", Integer)], body)?;
            match time["seconds"].as_i64().map(jiff::Timestamp::from_second) {
                Some(Ok(time)) => json!(time.to_string()),
                Some(Err(_)) => return Err("a point in time is out of range"),
                None => Value::Null,
            }
        }
        (IntOrString, Wire::Bytes(body)) => {
            let either = message(
                &[singular(1, "type", Integer), optional(2, "number", Integer), optional(3, "text", Str)],
                body,
            )?;
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
