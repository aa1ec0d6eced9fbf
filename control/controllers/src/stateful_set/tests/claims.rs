use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use proptest::prelude::*;

use super::{claim, controlled_by, pod, set};
use crate::{
    pod_control::owner_reference,
    stateful_set::retention::{self, Owners, Policy},
};

#[test]
fn claims_go_with_what_the_policy_says() {
    let (set, pod) = (set(), pod(0, "web-b", "Running", Some(1)));
    // The owners' UIDs, for (when deleted, when scaled, condemned).
    for (deleted, scaled, condemned, expected) in [
        (false, false, false, vec![]),
        (false, false, true, vec![]),
        (true, false, false, vec!["set"]),
        (true, false, true, vec!["set"]),
        (false, true, false, vec![]),
        (false, true, true, vec!["uid-0"]),
        (true, true, false, vec!["set"]),
        (true, true, true, vec!["uid-0"]),
    ] {
        let policy = Policy { when_deleted: deleted, when_scaled: scaled };
        let user = OwnerReference { uid: "user".into(), ..OwnerReference::default() };
        for before in [vec![], vec![controlled_by("StatefulSet", "set")], vec![controlled_by("Pod", "uid-0")]] {
            let before = claim([vec![user.clone()], before].concat());
            let after = match retention::owners(policy, &set, &pod, condemned, &before) {
                Owners::Keep => before.metadata.owner_references.clone().unwrap_or_default(),
                Owners::Set(owners) => owners,
                Owners::Conflict => panic!("nobody else has it"),
            };
            let uids: Vec<&str> = after.iter().map(|owner| owner.uid.as_str()).collect();
            assert_eq!(uids, [vec!["user"], expected.clone()].concat(), "{policy:?} {condemned}");
            let again = retention::owners(policy, &set, &pod, condemned, &claim(after));
            assert_eq!(again, Owners::Keep, "{policy:?} {condemned}");
        }
    }
    let policy = Policy { when_deleted: true, when_scaled: true };
    let foreign = claim(vec![controlled_by("Other", "other")]);
    assert_eq!(retention::owners(policy, &set, &pod, true, &foreign), Owners::Conflict);
    let by_hand = OwnerReference { uid: "set".into(), ..OwnerReference::default() };
    let owners = |policy, before| retention::owners(policy, &set, &pod, true, &claim(before));
    let put_right = Owners::Set(vec![owner_reference(&set)]);
    let deleted = Policy { when_deleted: true, when_scaled: false };
    assert_eq!(owners(deleted, vec![by_hand.clone()]), put_right);
    let retain = Policy { when_deleted: false, when_scaled: false };
    assert_eq!(owners(retain, vec![by_hand.clone()]), Owners::Set(vec![]), "else it would go with the set");
    // Where another controller has the claim, ours is taken off.
    let other = controlled_by("Other", "other");
    assert_eq!(owners(policy, vec![other.clone(), by_hand]), Owners::Set(vec![other]));
    let earlier = OwnerReference { uid: "earlier".into(), ..owner_reference(&set) };
    assert_eq!(owners(retain, vec![earlier]), Owners::Keep);
}

#[test]
fn a_claim_of_an_earlier_pod_is_waited_for() {
    let mut owner = controlled_by("Pod", "uid-0");
    owner.name = "web-0".into();
    let claim = claim(vec![owner]);
    assert!(retention::is_stale(&claim, "web-0", None));
    assert!(retention::is_stale(&claim, "web-0", Some("uid-1")));
    assert!(!retention::is_stale(&claim, "web-0", Some("uid-0")));
    assert!(!retention::is_stale(&claim, "web-1", None));
}

proptest! {
    /// Only a policy that says so makes a claim go with something.
    #[test]
    fn claims_stay_unless_the_policy_says_otherwise(when_deleted: bool, when_scaled: bool, condemned: bool) {
        let (set, pod) = (set(), pod(0, "web-b", "Running", Some(1)));
        let got = retention::owners(Policy { when_deleted, when_scaled }, &set, &pod, condemned, &claim(vec![]));
        let owners = if let Owners::Set(owners) = got { owners } else { Vec::new() };
        prop_assert!(owners.iter().all(|o| (o.uid == "set" && when_deleted) || (o.uid == "uid-0" && when_scaled)));
        prop_assert!(owners.is_empty() || when_deleted || (when_scaled && condemned));
    }
}
