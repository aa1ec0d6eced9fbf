//! What we answer otherwise than a kube-apiserver, and why: on purpose, or since nobody has mended it yet.

/// A difference that is known; `*` in a pattern stands for anything.
pub(crate) struct Row {
    /// The steps by name; what a watch tells of one is called after it.
    pub(crate) step: &'static str,
    /// Places in the answer, which is `{code, body}`, or in a watch's event, as JSON pointers.
    pub(crate) at: &'static str,
    pub(crate) standing: Standing,
    pub(crate) why: &'static str,
}

/// Whether a difference stays.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Standing {
    OnPurpose,
    ToMend,
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::OnPurpose => "on purpose",
            Self::ToMend => "to mend",
        })
    }
}

const fn on_purpose(step: &'static str, at: &'static str, why: &'static str) -> Row {
    Row { step, at, standing: Standing::OnPurpose, why }
}

const fn to_mend(step: &'static str, at: &'static str, why: &'static str) -> Row {
    Row { step, at, standing: Standing::ToMend, why }
}

/// All of them; the first that fits counts. A row that nothing fits any more is an error: of the test of chance where its
/// step is [`of_chance`], else of the written sequence's.
pub(crate) const TABLE: &[Row] = &[
    on_purpose("*", "/body/items/*/apiVersion", "items of a list are served as they are stored; clients read the same"),
    on_purpose("*", "/body/items/*/kind", "the same"),
    on_purpose("pods as a table", "/body/columnDefinitions/*/description", "descriptions of columns are our own words"),
    on_purpose("*", "/body/details/causes/1", "upstream tells some causes twice"),
    on_purpose(
        "status: conditions in order*",
        "*",
        "upstream answers 500 to a list that is not in the order of its $setElementOrder, here the order is made",
    ),
    on_purpose(
        "patch: JSON*",
        "*",
        "the message says what is wrong with the patch; an unknown operation is 400, upstream 422",
    ),
    on_purpose("patch: another node", "/body/*", "the message holds our own comparison instead of Go's"),
    on_purpose(
        "patch: strictly",
        "*",
        "the answer is that of a creation; upstream's of a patch has no kind and quotes all of the object",
    ),
    on_purpose("patch: a wrong type", "*", "the same"),
    on_purpose("patch: no patch", "/body/message", "our own words"),
    on_purpose("patch: of no kind", "/body/message", "the message names what can be sent"),
    to_mend(
        "apply: *",
        "*",
        "an applied configuration is merged without owners of fields: nothing conflicts, nothing is taken back",
    ),
    on_purpose("refused: a quantity that is none", "/body/message", "without Go's name of the field"),
    on_purpose("refused: *", "/body/message", "our own words where upstream's are Go's"),
    on_purpose("ephemeral container changes", "/body/*message", "without Go's comparison"),
    on_purpose("delete: an old revision", "/body/message", "revisions are our own"),
    on_purpose("delete: a grace that is none", "/body/message", "our own words"),
    on_purpose("delete: nonsense", "/body/message", "our own words"),
    on_purpose(
        "delete: *: watch of pods",
        "/*",
        "an end at once is one event; upstream writes that the pod is being deleted before it is gone",
    ),
    on_purpose("random: delete*: watch of pods", "/*", "the same"),
    on_purpose("random: JSON patch*", "*message", "the message says what is wrong with the patch"),
    on_purpose("random: spec*", "*message", "without Go's comparison"),
    to_mend("event of the new group", "*", "events.k8s.io is not served"),
    on_purpose("review", "/body/status/allowed", "nodes may list EndpointSlices"),
    on_purpose("mirror pod of an administrator*", "*", "only nodes make mirror pods"),
];

/// Whether a row is about sequences of chance.
pub(crate) fn of_chance(row: &Row) -> bool {
    row.step.starts_with("random: ")
}
