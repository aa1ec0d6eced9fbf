//! Whether a write is within a quota, and what is used after it.

use proptest::prelude::*;

use super::*;

fn quota(hard: &Value, used: &Value) -> Quota {
    Quota::read(&json!({"metadata": {"name": "q"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}}))
}

fn write(resource: &str, old: Option<Value>, new: Option<Value>) -> Request {
    Request { evaluator: evaluator(resource), old, new, is_limited: true }
}

fn refusal(quotas: &[Quota], request: &Request) -> String {
    check(quotas, request, now()).err().unwrap_or_default()
}

/// A write that was admitted before the first count is counted by its transaction, if that comes after it.
#[test]
fn a_quota_that_nobody_has_counted_is_looked_at_again() {
    let object = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2"}}});
    let request = write("pods", None, Some(json!({"spec": {"containers": [{"name": "c"}]}})));
    assert!(Quota::read(&object).difference(&request, now()).is_empty(), "it limits nothing yet");
    assert!(!Quota::to_come(&object).difference(&request, now()).is_empty());
}

#[test]
fn refusals_are_in_upstreams_words() {
    let asking =
        |requests: Value| pod(json!([container("b", &requests, &json!({})), container("a", &requests, &json!({}))]));
    for (hard, used, object, wanted) in [
        (json!({"pods": "2"}), json!({"pods": "1"}), asking(json!({})), ""),
        (
            json!({"pods": "2"}),
            json!({"pods": "2"}),
            asking(json!({})),
            "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2",
        ),
        (
            json!({"cpu": "1", "requests.memory": "500Mi", "pods": "9"}),
            json!({"cpu": "900m", "requests.memory": "0", "pods": "1"}),
            asking(json!({"cpu": "100m", "memory": "300Mi"})),
            "exceeded quota: q, requested: cpu=200m,requests.memory=600Mi, used: cpu=900m,requests.memory=0, limited: cpu=1,requests.memory=500Mi",
        ),
        (
            json!({"requests.cpu": "1", "limits.memory": "1Gi"}),
            json!({"requests.cpu": "0", "limits.memory": "0"}),
            asking(json!({"memory": "1"})),
            "failed quota: q: must specify limits.memory for: a,b; requests.cpu for: a,b",
        ),
        (
            json!({"pods": "2", "count/pods": "2", "secrets": "1"}),
            json!({"pods": "0"}),
            asking(json!({})),
            "status unknown for quota: q, resources: count/pods,pods",
        ),
        // Of what others count, nothing is known and nothing asked.
        (json!({"secrets": "1", "pods": "1"}), json!({"pods": "0"}), asking(json!({})), ""),
        (
            json!({"pods": "2"}),
            json!({"pods": "0"}),
            asking(json!({"cpu": "-1"})),
            "quota usage is negative for resource(s): cpu,requests.cpu",
        ),
    ] {
        assert_eq!(refusal(&[quota(&hard, &used)], &write("pods", None, Some(object))), wanted, "{hard} {used}");
    }
    // A pod that says what it needs as a whole need not say it for each container.
    let mut whole = asking(json!({}));
    whole["spec"]["resources"] = json!({"requests": {"cpu": "2"}});
    assert_eq!(
        refusal(&[quota(&json!({"cpu": "1"}), &json!({"cpu": "0"}))], &write("pods", None, Some(whole))),
        "exceeded quota: q, requested: cpu=2, used: cpu=0, limited: cpu=1"
    );
}

#[test]
fn an_update_is_counted_by_what_it_changes() {
    let service = |kind: &str| json!({"spec": {"type": kind, "ports": [{"port": 1}]}});
    let full = quota(
        &json!({"services": "1", "services.nodeports": "1"}),
        &json!({"services": "1", "services.nodeports": "1"}),
    );
    let change = |old: &str, new: &str| write("services", Some(service(old)), Some(service(new)));
    assert_eq!(refusal(std::slice::from_ref(&full), &change("NodePort", "LoadBalancer")), "");
    let more =
        "exceeded quota: q, requested: services.nodeports=1, used: services.nodeports=1, limited: services.nodeports=1";
    assert_eq!(refusal(std::slice::from_ref(&full), &change("ClusterIP", "NodePort")), more);
    assert_eq!(full.used_after(&change("ClusterIP", "NodePort"), now()), None);
    let after = |request: &Request| full.used_after(request, now()).unwrap().to_string();
    assert_eq!(after(&change("NodePort", "ClusterIP")), "services=1,services.nodeports=0");
    assert_eq!(after(&write("services", Some(service("NodePort")), None)), "services=0,services.nodeports=0");
    // What was counted wrong does not become negative.
    let wrong = quota(&json!({"services": "1"}), &json!({"services": "0"}));
    let gone = write("services", Some(service("NodePort")), None);
    assert_eq!(wrong.used_after(&gone, now()).unwrap().to_string(), "services=0");
    // A change that is not limited is counted whatever there is.
    let request = Request { is_limited: false, ..change("ClusterIP", "NodePort") };
    assert_eq!(after(&request), "services=1,services.nodeports=2");
}

#[test]
fn a_count_of_all_objects_is_the_status() {
    let object = json!({
        "spec": {"hard": {"pods": "5", "secrets": "3", "count/widgets.example.com": "1", "example.com/x": "1"}},
        "status": {"hard": {"pods": "4"}, "used": {"pods": "9", "count/widgets.example.com": "7", "configmaps": "1"}},
    });
    let [pods, secrets, widgets] = ["pods", "secrets", "widgets.example.com"].map(evaluator);
    let ended = json!({"status": {"phase": "Failed"}, "spec": {"containers": []}});
    let all = [pod(json!([])), ended];
    let counted = [(&pods, Some(&all[..])), (&secrets, Some(&[][..])), (&widgets, None)];
    // Of what is not served the old count stays, of what is not limited any more none does.
    assert_eq!(
        recount(&object, counted, now()),
        json!({"hard": object["spec"]["hard"], "used": {"pods": "1", "secrets": "0", "count/widgets.example.com": "7"}})
    );
    assert_eq!(recount(&json!({"spec": {}}), [], now()), json!({}));
}

/// A pod by its request in millicores, whether it has ended, and whether it has a deadline.
fn any_pod() -> impl Strategy<Value = Value> {
    (0..2000_u32, any::<bool>(), any::<bool>()).prop_map(|(milli, has_ended, has_deadline)| {
        let mut object = pod(json!([container("c", &json!({"cpu": format!("{milli}m")}), &json!({}))]));
        object["status"]["phase"] = json!(if has_ended { "Succeeded" } else { "Running" });
        if has_deadline {
            object["spec"]["activeDeadlineSeconds"] = json!(1);
        }
        object
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is written, what is used after each write is what a count of all objects finds.
    #[test]
    fn counting_each_write_is_counting_all(
        writes in prop::collection::vec((0..4_usize, prop::option::of(any_pod())), 1..30),
        scoped in any::<bool>(),
    ) {
        let hard = json!({"pods": "1000", "requests.cpu": "1000", "count/pods": "1000"});
        let scopes = if scoped { json!(["NotTerminating"]) } else { json!([]) };
        let mut stored: [Option<Value>; 4] = Default::default();
        let mut object = json!({"metadata": {"name": "q"}, "spec": {"hard": hard, "scopes": scopes}});
        let pods = evaluator("pods");
        object["status"] = recount(&object, [(&pods, Some(&[][..]))], now());
        for (at, new) in writes {
            let request = Request { evaluator: pods.clone(), old: stored[at].clone(), new: new.clone(), is_limited: true };
            let used = Quota::read(&object).used_after(&request, now()).expect("there is enough");
            object["status"]["used"] = used.write();
            stored[at] = new;
            let all: Vec<Value> = stored.iter().flatten().cloned().collect();
            let counted = recount(&object, [(&pods, Some(&all[..]))], now());
            prop_assert_eq!(ResourceList::read(&counted["used"]), used);
        }
    }
}
