use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::api::ApiResource;
use proptest::prelude::*;

use super::graph::*;
use crate::runtime::rest_mapper::Kind;

fn kind() -> Arc<Kind> {
    let resource = ApiResource {
        group: String::new(),
        version: "v1".into(),
        api_version: "v1".into(),
        kind: "Thing".into(),
        plural: "things".into(),
    };
    Arc::new(Kind { resource, namespaced: true, verbs: vec![] })
}

fn meta(id: &str, owners: &[&str]) -> ObjectMeta {
    let owners: Vec<OwnerReference> = owners
        .iter()
        .map(|uid| OwnerReference {
            api_version: "v1".into(),
            kind: "Thing".into(),
            name: (*uid).into(),
            uid: (*uid).into(),
            block_owner_deletion: Some(!uid.starts_with("loose")),
            ..OwnerReference::default()
        })
        .collect();
    ObjectMeta {
        name: Some(id.into()),
        namespace: Some("default".into()),
        uid: Some(id.into()),
        owner_references: Some(owners),
        ..ObjectMeta::default()
    }
}

fn going(mut meta: ObjectMeta, finalizer: &str) -> ObjectMeta {
    meta.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    meta.finalizers = Some(vec![finalizer.into()]);
    meta
}

fn step(graph: &Graph, meta: &ObjectMeta, states: &[Owner]) -> Step {
    graph.plan_dependent(&Object::of(&kind(), meta), states)
}

#[test]
fn dependents_go_when_no_owner_is_left() {
    use Owner::{Absent, Invalid, Solid, Unknown, Waiting};
    let graph = Graph::default();
    let two = meta("d", &["a", "b"]);
    for (states, expected) in [
        ([Solid, Solid], Step::Nothing),
        ([Absent, Absent], Step::Delete(Policy::Background)),
        ([Solid, Absent], Step::RemoveOwnerReferences(vec!["b".into()])),
        ([Waiting, Solid], Step::RemoveOwnerReferences(vec!["a".into()])),
        ([Absent, Waiting], Step::Delete(Policy::Background)),
        ([Absent, Invalid], Step::RemoveOwnerReferences(vec!["a".into()])),
        ([Absent, Unknown], Step::Nothing),
    ] {
        assert_eq!(step(&graph, &two, &states), expected, "{states:?}");
    }
    assert_eq!(step(&graph, &going(two, "x"), &[Absent, Absent]), Step::Nothing, "it goes already");
    assert_eq!(step(&graph, &meta("d", &[]), &[]), Step::Nothing);
    let mut served = meta("d", &["a"]);
    served.finalizers = Some(vec![ORPHAN.into()]);
    assert_eq!(step(&graph, &served, &[Absent]), Step::Delete(Policy::Orphan));
}

#[test]
fn changes_enqueue_owners_and_dependents() {
    let (mut graph, kind) = (Graph::default(), kind());
    assert!(graph.applied(&kind, &meta("owner", &[])).is_empty());
    assert!(graph.applied(&kind, &meta("child", &["owner"])).is_empty(), "its owner lives");
    assert_eq!(graph.applied(&kind, &meta("stray", &["nobody"])), [uid("stray")]);
    assert_eq!(graph.with_unknown_owners(), [uid("stray")]);
    assert_eq!(graph.deleted("owner"), [uid("child")]);
    assert_eq!(graph.owner("default", &meta("x", &["owner"]).owner_references.unwrap()[0]), Owner::Unknown);
}

#[test]
fn foreground_waits_for_blocking_dependents_only() {
    let (mut graph, kind) = (Graph::default(), kind());
    let owner = going(meta("owner", &[]), FOREGROUND);
    graph.applied(&kind, &meta("child", &["owner"]));
    assert!(graph.applied(&kind, &owner).contains(&uid("owner")));
    let object = Object::of(&kind, &owner);
    assert_eq!(graph.plan_deleting_owner(&object), Step::AwaitDependents(vec![uid("child")]));
    let reference = &meta("child", &["owner"]).owner_references.unwrap()[0];
    assert_eq!(graph.owner("default", reference), Owner::Waiting);
    assert_eq!(graph.deleted("child"), [uid("owner")], "the owner waited for it");
    assert_eq!(graph.plan_deleting_owner(&object), Step::RemoveForegroundFinalizer);

    let loose = going(meta("loose", &[]), FOREGROUND);
    graph.applied(&kind, &loose);
    graph.applied(&kind, &meta("child2", &["loose"]));
    assert_eq!(graph.plan_deleting_owner(&Object::of(&kind, &loose)), Step::RemoveForegroundFinalizer);
}

#[test]
fn orphaning_names_the_dependents() {
    let (mut graph, kind) = (Graph::default(), kind());
    let owner = going(meta("owner", &[]), ORPHAN);
    graph.applied(&kind, &meta("child", &["owner"]));
    graph.applied(&kind, &owner);
    assert_eq!(graph.plan_deleting_owner(&Object::of(&kind, &owner)), Step::Orphan);
}

#[test]
fn circles_are_broken() {
    let (mut graph, kind) = (Graph::default(), kind());
    graph.applied(&kind, &going(meta("a", &["b"]), FOREGROUND));
    let b = meta("b", &["a"]);
    graph.applied(&kind, &b);
    assert_eq!(step(&graph, &b, &[Owner::Waiting]), Step::Delete(Policy::ForegroundUnblocked));
}

#[test]
fn owners_in_other_namespaces_are_invalid() {
    let (mut graph, kind) = (Graph::default(), kind());
    graph.applied(&kind, &meta("owner", &[]));
    let reference = &meta("child", &["owner"]).owner_references.unwrap()[0];
    assert_eq!(graph.owner("default", reference), Owner::Solid);
    assert_eq!(graph.owner("elsewhere", reference), Owner::Invalid);
}

proptest! {
    /// After everything is deleted nothing is remembered, whatever the order.
    #[test]
    fn nothing_is_remembered(edges in prop::collection::vec((0u8..12, 0u8..12), 0..40), order in Just((0u8..12).collect::<Vec<_>>()).prop_shuffle()) {
        let (mut graph, kind) = (Graph::default(), kind());
        for id in 0u8..12 {
            let owners: Vec<String> = edges.iter().filter(|(d, _)| *d == id).map(|(_, o)| format!("u{o}")).collect();
            let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
            graph.applied(&kind, &meta(&format!("u{id}"), &owners));
        }
        for id in order {
            for dependent in graph.deleted(&format!("u{id}")) {
                prop_assert!(graph.get(dependent).is_some());
            }
        }
        prop_assert!(graph.with_unknown_owners().is_empty());
        for id in 0u8..12 {
            let left = graph.dependents_of(uid(&format!("u{id}")));
            prop_assert!(left.is_empty());
        }
    }
}

#[test]
fn a_reference_with_another_kind_or_name_is_asked_for() {
    let (mut graph, kind) = (Graph::default(), kind());
    graph.applied(&kind, &meta("owner", &[]));
    let good = meta("d", &["owner"]).owner_references.unwrap().remove(0);
    assert_eq!(graph.owner("default", &good), Owner::Solid);
    for (wrong, change) in [
        ("kind", (|owner| owner.kind = "Other".into()) as fn(&mut OwnerReference)),
        ("name", |owner| owner.name = "another".into()),
        ("group", |owner| owner.api_version = "example.com/v1".into()),
    ] {
        let mut reference = good.clone();
        change(&mut reference);
        assert_eq!(graph.owner("default", &reference), Owner::Unknown, "{wrong}");
        let mut dependent = meta("d", &[]);
        dependent.owner_references = Some(vec![reference]);
        assert_eq!(graph.applied(&kind, &dependent), [uid("d")], "{wrong}");
    }
    let mut other_version = good;
    other_version.api_version = "v2".into();
    assert_eq!(graph.owner("default", &other_version), Owner::Solid);
}

#[test]
fn foreground_deletion_looks_at_nonblocking_dependents() {
    let (mut graph, kind) = (Graph::default(), kind());
    graph.applied(&kind, &meta("loose", &[]));
    graph.applied(&kind, &meta("child", &["loose"]));
    let begun = graph.applied(&kind, &going(meta("loose", &[]), FOREGROUND));
    assert!(begun.contains(&uid("child")), "{begun:?}");
    assert!(!graph.applied(&kind, &going(meta("loose", &[]), FOREGROUND)).contains(&uid("child")), "once");
}
