//! The deprecated annotation that asks for an earlier revision.

use windlass_kit::events::Severity;

use super::{rolling_back::apply, *};

fn asking(mut deployment: Deployment, revision: &str) -> Deployment {
    let annotations = deployment.metadata.annotations.get_or_insert_default();
    annotations.insert(annotations::ROLLBACK_TO.to_owned(), revision.to_owned());
    deployment
}

fn noted(mut deployment: Deployment, cause: &str) -> Deployment {
    let annotations = deployment.metadata.annotations.get_or_insert_default();
    annotations.insert("kubernetes.io/change-cause".to_owned(), cause.to_owned());
    deployment
}

fn image_of(deployment: &Deployment) -> Option<&str> {
    deployment.spec.as_ref()?.template.spec.as_ref()?.containers[0].image.as_deref()
}

#[test]
fn a_request_is_granted_or_refused_and_ends_in_any_case() {
    let first = noted(deployment(json!({})), "one");
    let second = noted(image(&first, "v2"), "two");
    let third = noted(image(&first, "v3"), "three");
    let sets = [set(&first, 1, 0, 0), set(&second, 2, 0, 0), set(&third, 3, 3, 3)];
    let done = |revision: i64| {
        (Severity::Normal, "RollbackDone", format!("Rolled back deployment \"web\" to revision {revision}"))
    };
    let unchanged = "The rollback revision contains the same template as current deployment \"web\"";
    for (revision, event, image, cause) in [
        ("1", done(1), "v1", "one"),
        ("2", done(2), "v2", "two"),
        ("0", done(2), "v2", "two"),
        ("3", (Severity::Warning, "RollbackTemplateUnchanged", unchanged.to_owned()), "v3", "three"),
        (
            "9",
            (Severity::Warning, "RollbackRevisionNotFound", "Unable to find the revision to rollback to.".to_owned()),
            "v3",
            "three",
        ),
    ] {
        let mut asking = asking(third.clone(), revision);
        let plan = plan(&asking, &sets);
        assert!(plan.steps.is_empty(), "nothing is rolled out before the request is gone: {:?}", plan.steps);
        let rollback = plan.rollback.unwrap();
        assert_eq!((rollback.severity, rollback.reason, rollback.text.clone()), event, "to {revision}");
        apply(&rollback, &mut asking);
        assert_eq!(image_of(&asking), Some(image));
        assert_eq!(asking.annotations().get("kubernetes.io/change-cause").map(String::as_str), Some(cause));
        assert!(!asking.annotations().contains_key(annotations::ROLLBACK_TO));
        let template = &asking.spec.as_ref().unwrap().template;
        let labels = template.metadata.as_ref().and_then(|meta| meta.labels.as_ref()).unwrap();
        assert!(!labels.contains_key(template::HASH_LABEL), "the hash is that of a ReplicaSet");
        // The next pass rolls out what the Deployment has now.
        assert!(super::plan(&asking, &sets).rollback.is_none());
    }
}

#[test]
fn without_an_earlier_revision_there_is_nothing_to_go_back_to() {
    let first = asking(deployment(json!({})), "0");
    let plan = plan(&first, &[set(&first, 1, 3, 3)]);
    let rollback = plan.rollback.unwrap();
    assert_eq!(
        (rollback.reason, rollback.text.as_str()),
        ("RollbackRevisionNotFound", "Unable to find last revision.")
    );
}

#[test]
fn requests_that_wait_and_requests_that_are_none() {
    let first = deployment(json!({}));
    let sets = [set(&first, 1, 3, 3)];
    assert!(plan(&asking(first.clone(), "x"), &sets).rollback.is_none());
    assert!(plan(&asking(deployment(json!({"paused": true})), "1"), &sets).rollback.is_none());
    assert!(plan(&first, &sets).rollback.is_none());
}
