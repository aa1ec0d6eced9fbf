//! Random requests.

use proptest::prelude::*;

use crate::kinds::{Field, KINDS, Kind, Rule};

/// Names of objects: few, so that requests meet the objects of earlier ones.
pub(crate) const NAMES: [&str; 2] = ["x", "y"];
pub(crate) const FINALIZERS: [&str; 2] = ["a.io/f", "b.io/f"];

/// What a request changes, by the pointer of the field; `None` removes it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Change {
    pub(crate) fields: Vec<(&'static str, Option<serde_json::Value>)>,
    /// New finalizers, none of them twice; empty for none at all.
    pub(crate) finalizers: Option<Vec<&'static str>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precondition {
    None,
    /// The resource version or uid that the object has.
    SameVersion,
    SameUid,
    /// One that it has not.
    OtherVersion,
    OtherUid,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatchType {
    Json,
    Merge,
    Strategic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    Orphan,
    Background,
    Foreground,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verb {
    Get,
    Create(Change),
    /// Replaces the object as it is stored by the changed one.
    Update {
        status: bool,
        change: Change,
        precondition: Precondition,
    },
    Patch {
        kind: PatchType,
        status: bool,
        change: Change,
        precondition: Precondition,
    },
    /// Applies a configuration: what every object has, and these fields.
    Apply {
        manager: &'static str,
        force: bool,
        fields: Vec<(&'static str, serde_json::Value)>,
    },
    Delete {
        policy: Option<Policy>,
        grace: Option<i64>,
        precondition: Precondition,
    },
    /// All objects with the label `a=1`.
    DeleteCollection {
        policy: Option<Policy>,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) name: &'static str,
    pub(crate) verb: Verb,
    pub(crate) dry_run: bool,
}

impl Request {
    pub(crate) fn path(&self) -> String {
        let (collection, name) = (self.kind.collection(), self.name);
        match &self.verb {
            Verb::Create(_) | Verb::DeleteCollection { .. } => collection.to_owned(),
            Verb::Update { status: true, .. } | Verb::Patch { status: true, .. } => {
                format!("{collection}/{name}/status")
            }
            _ => format!("{collection}/{name}"),
        }
    }
}

/// When the server is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kill {
    Never,
    AfterAnswer,
    /// So many tenths of a millisecond after the request was sent.
    During(u64),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Step {
    pub(crate) request: Request,
    pub(crate) kill: Kill,
}

/// Who applies configurations. All other requests are of [`UPDATER`].
const APPLIERS: [&str; 2] = ["m", "n"];
pub(crate) const UPDATER: &str = "u";

fn change_of(field: &'static Field) -> impl Strategy<Value = (&'static str, Option<serde_json::Value>)> {
    let removable = field.rule != Rule::Required;
    (any::<u8>(), prop::bool::weighted(0.3))
        .prop_map(move |(number, remove)| (field.pointer, (!(remove && removable)).then(|| field.value(number))))
}

/// A few fields of a kind that requests change.
fn fields(kind: Kind) -> impl Strategy<Value = Vec<&'static Field>> {
    let all: Vec<&'static Field> = kind.fields().iter().filter(|field| field.rule != Rule::Base).collect();
    prop::sample::subsequence(all, 0..=3)
}

fn change(kind: Kind) -> impl Strategy<Value = Change> {
    let fields = fields(kind).prop_flat_map(|chosen| chosen.into_iter().map(change_of).collect::<Vec<_>>());
    let finalizers = prop::option::weighted(0.25, prop::sample::subsequence(FINALIZERS.to_vec(), 0..=2));
    (fields, finalizers).prop_map(|(fields, finalizers)| Change { fields, finalizers })
}

fn precondition() -> impl Strategy<Value = Precondition> {
    use Precondition::{None, OtherUid, OtherVersion, SameUid, SameVersion};
    prop_oneof![6 => Just(None), 6 => Just(SameVersion), 1 => Just(SameUid), 1 => Just(OtherVersion), 1 => Just(OtherUid)]
}

fn policy() -> impl Strategy<Value = Option<Policy>> {
    use Policy::{Background, Foreground, Orphan};
    prop_oneof![3 => Just(None), 4 => Just(Some(Background)), 1 => Just(Some(Orphan)), 1 => Just(Some(Foreground))]
}

fn apply(kind: Kind) -> impl Strategy<Value = Verb> {
    let fields = (fields(kind), any::<u8>()).prop_map(|(chosen, number)| {
        let managed = chosen.into_iter().filter(|field| field.is_managed());
        managed.map(|field| (field.pointer, field.value(number))).collect::<Vec<_>>()
    });
    (prop::sample::select(APPLIERS.to_vec()), any::<bool>(), fields).prop_map(|(manager, force, fields)| Verb::Apply {
        manager,
        force,
        fields,
    })
}

fn verb(kind: Kind) -> impl Strategy<Value = Verb> {
    let status = move || prop::bool::weighted(if kind.has_status() { 0.4 } else { 0.1 });
    let patch = prop::sample::select(vec![PatchType::Json, PatchType::Merge, PatchType::Strategic]);
    // The model has no clock: none of these ends before the sequence does, and of the default none is asked for that is shorter.
    let grace = prop::sample::select(vec![None, None, Some(0), Some(3600), Some(7200)]);
    prop_oneof![
        1 => Just(Verb::Get),
        4 => change(kind).prop_map(Verb::Create),
        4 => (status(), change(kind), precondition())
            .prop_map(|(status, change, precondition)| Verb::Update { status, change, precondition }),
        6 => (patch, status(), change(kind), precondition())
            .prop_map(|(kind, status, change, precondition)| Verb::Patch { kind, status, change, precondition }),
        5 => if kind.is_managed() { apply(kind).boxed() } else { Just(Verb::Get).boxed() },
        3 => (policy(), grace, precondition())
            .prop_map(|(policy, grace, precondition)| Verb::Delete { policy, grace, precondition }),
        1 => policy().prop_map(|policy| Verb::DeleteCollection { policy }),
    ]
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let request = prop::sample::select(KINDS.to_vec()).prop_flat_map(|kind| {
        (prop::sample::select(NAMES.to_vec()), verb(kind), prop::bool::weighted(0.1))
            .prop_map(move |(name, verb, dry_run)| Request { kind, name, verb, dry_run })
    });
    let kill =
        prop_oneof![60 => Just(Kill::Never), 1 => Just(Kill::AfterAnswer), 1 => (0..30_u64).prop_map(Kill::During)];
    (request, kill).prop_map(|(request, kill)| Step { request, kill })
}
