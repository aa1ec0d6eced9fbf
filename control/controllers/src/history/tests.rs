use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, StatefulSet},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use proptest::prelude::*;
use serde_json::json;

use super::revisions::*;

fn template_of(image: &str) -> PodTemplateSpec {
    serde_json::from_value(json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": image}]},
    }))
    .unwrap()
}

fn owner() -> StatefulSet {
    let metadata = ObjectMeta {
        name: Some("web".into()),
        namespace: Some("n".into()),
        uid: Some("u".into()),
        annotations: Some(BTreeMap::from([("note".into(), "x".into())])),
        ..ObjectMeta::default()
    };
    StatefulSet { metadata, ..StatefulSet::default() }
}

fn revision(image: &str, number: i64) -> Arc<ControllerRevision> {
    Arc::new(new_revision(&owner(), &template_of(image), number, "controller.kubernetes.io/hash", None))
}

#[test]
fn a_revision_is_the_patch_of_the_template() {
    let made = revision("a", 3);
    let data = &made.data.as_ref().unwrap().0;
    assert_eq!(data["spec"]["template"]["$patch"], "replace");
    assert_eq!(data["spec"]["template"]["spec"]["containers"][0]["image"], "a");
    assert_eq!(template(&made), Some(template_of("a")));
    assert!(is_of(&made, &template_of("a")) && !is_of(&made, &template_of("b")));
    let labels = made.metadata.labels.as_ref().unwrap();
    let hash = &labels["controller.kubernetes.io/hash"];
    assert_eq!(labels["app"], "web");
    assert_eq!(made.metadata.name.as_deref(), Some(format!("web-{hash}").as_str()));
    assert_eq!(made.metadata.annotations.as_ref().unwrap()["note"], "x");
    assert_eq!(made.metadata.owner_references.as_ref().unwrap()[0].uid, "u");
    assert!(hash.bytes().all(|b| b.is_ascii_alphanumeric()));
}

#[test]
fn what_holds_no_template_equals_none() {
    let mut broken = ControllerRevision::clone(&revision("a", 1));
    for value in [json!(null), json!({"spec": 1}), json!({"spec": {"template": []}})] {
        broken.data.as_mut().unwrap().0 = value;
        assert!(!is_of(&broken, &template_of("a")));
    }
    broken.data = None;
    assert!(!is_of(&broken, &template_of("a")));
}

#[test]
fn collisions_make_another_name() {
    let data = data(&template_of("a"));
    let hashes = [hash(&data, None), hash(&data, Some(1)), hash(&data, Some(2))];
    assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2] && hashes[0] != hashes[2]);
    assert_eq!(name(&"ä".repeat(300), "h").chars().count(), 225, "long names are cut between characters");
}

#[test]
fn templates_are_found_again() {
    let all = [revision("a", 1), revision("b", 2)];
    assert!(matches!(choose(&[], &template_of("a")), Choice::Create(1)));
    assert!(matches!(choose(&all, &template_of("b")), Choice::Newest(r) if r.revision == 2));
    assert!(matches!(choose(&all, &template_of("a")), Choice::Renumber(r, 3) if r.revision == 1));
    assert!(matches!(choose(&all, &template_of("c")), Choice::Create(3)));
    let top = [revision("a", 1), revision("b", i64::MAX)];
    assert!(matches!(choose(&top, &template_of("c")), Choice::Create(i64::MAX)));
}

proptest! {
    /// However revisions are kept, those that are live stay, and of the others the newest.
    #[test]
    fn the_oldest_dead_ones_go(live in prop::collection::vec(any::<bool>(), 0..20), limit in 0usize..12) {
        let all: Vec<_> = (0..live.len()).map(|i| revision(&format!("i{i}"), i64::try_from(i).unwrap())).collect();
        let is_live = |r: &ControllerRevision| live[usize::try_from(r.revision).unwrap()];
        let gone = surplus(&all, is_live, limit);
        prop_assert!(gone.iter().all(|r| !is_live(r)));
        let dead: Vec<_> = all.iter().filter(|r| !is_live(r)).collect();
        prop_assert_eq!(dead.len() - gone.len(), dead.len().min(limit));
        prop_assert!(gone.iter().zip(dead).all(|(a, b)| Arc::ptr_eq(a, b)));
    }

    /// Numbers rise with every change, and a template that comes back takes its old revision.
    #[test]
    fn histories_have_one_revision_for_each_template(images in prop::collection::vec(0u8..4, 1..30)) {
        let mut all: Vec<Arc<ControllerRevision>> = Vec::new();
        for image in images {
            let (image, last) = (format!("i{image}"), all.last().map_or(0, |r| r.revision));
            let number = match choose(&all, &template_of(&image)) {
                Choice::Newest(newest) => {
                    prop_assert!(is_of(&newest, &template_of(&image)));
                    continue;
                }
                Choice::Renumber(old, number) => {
                    all.retain(|r| !Arc::ptr_eq(r, &old));
                    number
                }
                Choice::Create(number) => number,
            };
            prop_assert!(number > last);
            all.push(revision(&image, number));
            sort(&mut all);
            prop_assert!(is_of(all.last().unwrap(), &template_of(&image)));
        }
        prop_assert!(all.len() <= 4);
    }
}
