//! What we answer otherwise than a kube-apiserver, and why: on purpose, or since nobody has mended it yet.

/// A difference that is known; `*` in a pattern stands for anything.
pub(crate) struct Row {
    /// The steps by name.
    pub(crate) step: &'static str,
    /// Places in the answer, which is `{code, body}`, or in a watch's event, as JSON pointers.
    pub(crate) at: &'static str,
    pub(crate) why: &'static str,
}

const fn row(step: &'static str, at: &'static str, why: &'static str) -> Row {
    Row { step, at, why }
}

/// All of them; the first that fits counts. A row that nothing fits any more is an error of the written sequence's test.
pub(crate) const TABLE: &[Row] = &[
    row(
        "*",
        "/body/items/*/apiVersion",
        "on purpose: items of a list are served as they are stored; clients read the same",
    ),
    row("*", "/body/items/*/kind", "on purpose: the same"),
    row(
        "pods as a table",
        "/body/columnDefinitions/*/description",
        "on purpose: descriptions of columns are our own words",
    ),
    row(
        "*",
        "*/status/features*",
        "that build has the gate of supplementalGroupsPolicy off and drops the field; upstream has it on",
    ),
    row("*", "*/status/allocatable*", "to mend: what a node may give is filled in from its capacity"),
    row("*", "/body/details/group", "to mend: an empty group is left out of a Success too"),
    row("node status: features", "*", "to mend: declaredFeatures must be sorted"),
    row("node: taint of a bad kind", "*", "to mend: upstream names the field metadata.taints"),
    row("pod is bound again", "*", "to mend: upstream names pods/binding"),
    row(
        "status: of another pod of this name",
        "*",
        "to mend: another uid in a patch is 422 (an immutable field), here a failed precondition",
    ),
    row("patch: another uid", "*", "the same"),
    row("status: an address that is none", "*", "to mend: a status's addresses are checked less upstream"),
    row("status: two addresses of a family", "*", "the same"),
    row(
        "status: conditions in order",
        "*",
        "on purpose: upstream answers 500 to a list that is not in the order of its $setElementOrder, here the order is made",
    ),
    row(
        "*",
        "/body/status/*observedGeneration",
        "to mend: upstream keeps observedGeneration of a status that is put without it",
    ),
    row(
        "patch: JSON*",
        "*",
        "on purpose: the message says what is wrong with the patch; an unknown operation is 400, upstream 422",
    ),
    row("patch: another node", "/body/*", "on purpose: the message holds our own comparison instead of Go's"),
    row("patch: a toleration more", "*", "to mend: a toleration may be put before those that are there"),
    row(
        "patch: strictly",
        "*",
        "on purpose: the answer is that of a creation; upstream's of a patch has no kind and quotes all of the object",
    ),
    row("patch: a wrong type", "*", "the same"),
    row("patch: no patch", "/body/message", "on purpose: our own words"),
    row("patch: of no kind", "/body/message", "on purpose: the message names what can be sent"),
    row(
        "apply: *",
        "*",
        "to mend: an applied configuration is merged without owners of fields: nothing conflicts, nothing is taken back",
    ),
    row("refused: a quantity that is none", "/body/message", "on purpose: without Go's name of the field"),
    row("refused: a grace before now", "*", "to mend: upstream takes a negative grace for one second"),
    row("refused: a port of the host that is another", "*", "to mend: upstream names hostPort"),
    row("refused: an unknown user", "*", "to mend: users are not checked"),
    row("refused: *", "/body/message", "on purpose: our own words where upstream's are Go's"),
    row("ephemeral container changes", "*", "to mend: upstream names spec.ephemeralContainers"),
    row("pod after its eviction", "*", "to mend: an eviction adds the condition DisruptionTarget"),
    row("delete: an old revision", "/body/message", "on purpose: revisions are our own"),
    row("delete: by its node", "*", "to mend: the end of a pod is answered with the pod, here with a Success"),
    row("delete: goes at once", "*", "the same"),
    row("finalizer more", "*", "on purpose: a list is written as JSON, not as Go"),
    row("delete: a grace that is none", "/body/message", "on purpose: our own words"),
    row("delete: nonsense", "*", "to mend: a body of another kind is refused"),
    row("delete: all of a label", "*", "to mend: upstream answers with the objects as they were"),
    row("pods that are left", "*", "what the steps before have left"),
    row("event of the new group", "*", "to mend: events.k8s.io is not served"),
    row("review", "*", "to mend: kind and version in the answer; on purpose: nodes may list EndpointSlices"),
    row("mirror pod of an administrator", "*", "on purpose: only nodes make mirror pods"),
    row("watch of *", "*", "what the answers before differ in, shown again"),
];
