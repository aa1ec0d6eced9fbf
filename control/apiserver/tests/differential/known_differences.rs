//! Known differences from kube-apiserver with their reasons: intended, or to be fixed.

use serde_json::Value;

use crate::normalize::Difference;

/// A known difference; `*` in a pattern matches anything.
pub(crate) struct KnownDifference {
    /// Pattern of step names; watch events of a step begin with its name.
    pub(crate) step: &'static str,
    /// Pattern of JSON pointers into the response, which is `{code, body}`, or into a watch event.
    pub(crate) at: &'static str,
    pub(crate) status: Status,
    pub(crate) why: &'static str,
    pub(crate) in_all: InAll,
}

/// How much of a value that differs is another.
#[derive(Debug, Clone, Copy)]
pub(crate) enum InAll {
    /// Any part of it.
    Any,
    /// A text is the same but for the value of a field, which upstream writes as its internal type.
    ButInternalValues,
    /// Exactly both values that [`PAIRS`] has of that place in that step: a row for all of an answer, or for all of its body, would
    /// take any other difference there as well.
    AsRecorded,
    /// Of a watch: the event of the object's end alone, where upstream has one before it that says that the end comes.
    OneEventOfTheEnd,
}

/// Differences as they were last recorded (`UPDATE_RECORDED=1`): step, place, the real server's value and ours, in JSON.
pub(crate) const PAIRS: &str = include_str!("known_pairs.tsv");

/// A line of [`PAIRS`]. Objects that a text quotes are left out: their managed fields are in an order by chance.
pub(crate) fn pair(step: &str, difference: &Difference) -> String {
    let shown = |value: &Option<Value>| value.as_ref().map_or_else(|| "-".to_owned(), |v| unquoted(v).to_string());
    format!("{step}\t{}\t{}\t{}", difference.at, shown(&difference.real), shown(&difference.ours))
}

/// A value, of which all texts are [without values](without_values).
fn unquoted(value: &Value) -> Value {
    match value {
        Value::String(text) => without_values(text).into(),
        Value::Array(items) => items.iter().map(unquoted).collect(),
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), unquoted(value))).collect(),
        other => other.clone(),
    }
}

impl InAll {
    pub(crate) fn fits(self, step: &str, difference: &Difference) -> bool {
        // A line of a watch has the type and the name in quotes.
        let is_end_of = |real: &str, ours: Option<&str>| match (real.strip_prefix("\"MODIFIED\" "), ours) {
            (Some(name), Some(ours)) => ours.strip_prefix("\"DELETED\" ") == Some(name),
            _ => real.starts_with("\"DELETED\" ") && ours.is_none_or(|ours| ours.starts_with("\"DELETED\" ")),
        };
        let texts =
            (difference.real.as_ref().and_then(Value::as_str), difference.ours.as_ref().and_then(Value::as_str));
        match (self, texts) {
            (Self::Any, _) => true,
            (Self::AsRecorded, _) => is_recording() || PAIRS.lines().any(|line| line == pair(step, difference)),
            (Self::OneEventOfTheEnd, (Some(real), ours)) => is_end_of(real, ours),
            (Self::OneEventOfTheEnd, _) => false,
            (Self::ButInternalValues, (Some(real), Some(ours))) => without_values(real) == without_values(ours),
            (Self::ButInternalValues, _) => false,
        }
    }
}

/// Whether [`PAIRS`] is written again.
pub(crate) fn is_recording() -> bool {
    std::env::var_os("UPDATE_RECORDED").is_some()
}

/// A text of errors without the structs and lists that it repeats, quoted or not.
fn without_values(text: &str) -> String {
    const BEFORE: &str = " value: ";
    let Some(at) = text.find(BEFORE).map(|at| at + BEFORE.len()) else { return text.to_owned() };
    let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
    let starts = ["{", "[", "\"{", "\"["].iter().any(|start| text[at..].starts_with(start));
    let is_struct = starts && values.next().is_some_and(|value| value.is_ok());
    let end = if is_struct { at + values.byte_offset() } else { at };
    format!("{}{}{}", &text[..at], if is_struct { "…" } else { "" }, without_values(&text[end..]))
}

/// Whether a difference stays.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Status {
    Intended,
    ToFix,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Intended => "on purpose",
            Self::ToFix => "to mend",
        })
    }
}

const fn intended(step: &'static str, at: &'static str, why: &'static str) -> KnownDifference {
    KnownDifference { step, at, status: Status::Intended, why, in_all: InAll::Any }
}

const fn internal_value(step: &'static str, at: &'static str, why: &'static str) -> KnownDifference {
    KnownDifference { step, at, status: Status::Intended, why, in_all: InAll::ButInternalValues }
}

const fn recorded(step: &'static str, at: &'static str, why: &'static str) -> KnownDifference {
    KnownDifference { step, at, status: Status::Intended, why, in_all: InAll::AsRecorded }
}

const fn one_event_of_the_end(step: &'static str, why: &'static str) -> KnownDifference {
    KnownDifference { step, at: "/*", status: Status::Intended, why, in_all: InAll::OneEventOfTheEnd }
}

// Nothing is to be fixed at the moment.
#[allow(dead_code)]
const fn to_fix(step: &'static str, at: &'static str, why: &'static str) -> KnownDifference {
    KnownDifference { step, at, status: Status::ToFix, why, in_all: InAll::Any }
}

/// All known differences; the first match counts. A row without a match is an error: in the test of random sequences if
/// its step is [`is_random`], in that of the kinds if it is [`is_of_kinds`], else in the one of the fixed scenario.
pub(crate) const KNOWN_DIFFERENCES: &[KnownDifference] = &[
    intended("pods as a table", "/body/columnDefinitions/*/description", "descriptions of columns are our own words"),
    intended("*", "/body/details/causes/1", "upstream tells some causes twice"),
    intended("webhook: ignored: broken", "/body/*message", "it names the operation and says why it does not fit"),
    intended("conversion: kindless: *", "/body/message", "it says whose webhook has answered so"),
    intended("webhook: sub: binding (calls)", "*/managedFields", "a Binding is not stored: nobody reads its owners"),
    intended("policy: create d-kind", "/body/*message", "upstream decodes the object as one of the new kind"),
    recorded("patch: JSON*", "/body/*", "the message says what is wrong with the patch"),
    intended("patch: null where nothing is", "/body/*message", "without Go's comparison"),
    recorded("patch: another node", "/body/*", "the message holds our own comparison instead of Go's"),
    recorded("patch: strictly", "/body/*", "the patch is quoted; upstream quotes all of the object"),
    recorded("patch: a wrong type", "*", "the same"),
    intended("patch: no patch", "/body/message", "our own words"),
    intended("patch: of no kind", "/body/message", "the message names what can be sent"),
    intended("refused: a quantity that is none", "/body/message", "without Go's name of the field"),
    intended("refused: *", "/body/message", "our own words where upstream's are Go's"),
    intended("delete: an old revision", "/body/message", "revisions are our own"),
    intended("delete: nonsense", "/body/message", "our own words"),
    one_event_of_the_end(
        "delete: *: watch of pods",
        "an end at once is one event; upstream writes that the pod is being deleted before it is gone",
    ),
    one_event_of_the_end("random: delete*: watch of pods", "the same"),
    intended("random: JSON patch*", "*message", "the message says what is wrong with the patch"),
    intended("random: spec*", "*message", "without Go's comparison"),
    intended("review: of a node", "/body/status/allowed", "nodes may list EndpointSlices"),
    intended("review: rules*", "/body/status/*", "the roles are those of upstream's vendor, in an order by chance"),
    intended("review: of oneself", "/body/status/userInfo/*", "here the caller is a component of the process"),
    recorded(
        "lease of a short time",
        "*",
        "times of another precision are read as well; all are written in microseconds",
    ),
    intended("finalizers of a dying map", "/body/details/causes/*", "upstream tells some causes twice"),
    intended("definition: no such version", "/body", "a Status in place of a page without one"),
    intended("definition: in the version that is gone", "/body", "the same"),
    intended("extension: no *", "/body", "the same"),
    intended("extension: as a table", "/body/columnDefinitions/*/description", "descriptions are our own words"),
    intended("managed: *", "/body/details/causes/*", "upstream tells some causes twice"),
    recorded("mirror pod of an administrator*", "*", "only nodes make mirror pods"),
    intended(
        "kind: *FlowSchema",
        "/body/metadata/managedFields/*",
        "upstream's priority and fairness writes whether the level is there",
    ),
    intended("kind: *FlowSchema", "/body/status/conditions", "the same"),
    intended("kind: table*FlowSchema", "/body/rows/0/*", "the same"),
    intended(
        "kind: table*DaemonSet",
        "/body/rows/0/object/metadata/annotations",
        "upstream makes tables of its internal type, which has no annotation",
    ),
    intended("kind: table*IPAddress", "/body/rows/0/cells/2", "upstream has a cell without a column here"),
    intended("kind: *CertificateSigningRequest", "/body/spec/extra", "the caller has no certificate here"),
    intended("kind: replace without a version*Job", "/body/*message", "upstream writes its internal type"),
    intended(
        "kind: replace without a version v1 Pod",
        "/body/*message",
        "the fields that differ are named in place of a comparison of Go's internal types",
    ),
    intended(
        "kind: patch proxy v1 Node",
        "/body/message",
        "the node that does not answer is named, and what to look at",
    ),
    intended(
        "kind: *v1 Pod",
        "/body/spec/volumes/2/projected/sources/3",
        "the judge's vendor gives every token volume the CA of its services",
    ),
    internal_value(
        "kind: refused apiextensions.k8s.io/v1 CustomResourceDefinition /spec/versions/0*",
        "/body/*message",
        "schemas are repeated as they were sent, not with all fields of Go's internal type",
    ),
    intended("kind: discovery of v1", "/body/apiVersion", "the list of the core group has a version, as the others"),
    to_fix(
        "kind: discovery of apiextensions*",
        "/body/resources/customresourcedefinitions/storageVersionHash",
        "upstream stores definitions as v1beta1",
    ),
    to_fix(
        "kind: discovery of admissionregistration*",
        "/body/resources/mutating*/storageVersionHash",
        "upstream stores mutating policies as v1beta1",
    ),
];

/// Whether a row is for the fixed scenario.
pub(crate) fn is_of_scenario(row: &KnownDifference) -> bool {
    !["random: ", "kind: ", "definition: ", "managed: ", "webhook: ", "conversion: ", "policy: ", "extension: "]
        .iter()
        .any(|start| row.step.starts_with(start))
}

/// Whether a row is for random sequences.
pub(crate) fn is_random(row: &KnownDifference) -> bool {
    row.step.starts_with("random: ")
}

/// Whether a row is for the kinds in turn.
pub(crate) fn is_of_kinds(row: &KnownDifference) -> bool {
    row.step.starts_with("kind: ")
}
