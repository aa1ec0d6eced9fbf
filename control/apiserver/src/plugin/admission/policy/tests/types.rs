//! Expressions of policies compared with the types of what they are about. Upstream's `typechecking_test.go`.

use super::*;
use crate::plugin::admission::policy::type_checking::warnings;

fn policy(rules: &[Value], spec: &Value) -> Value {
    let usual = json!({"matchConstraints": {"resourceRules": rules}});
    json!({"metadata": {"name": "p", "generation": 1}, "spec": merged(&usual, spec)})
}

/// The fields that warnings are about, with the warnings.
fn found(api: &Instance, policy: &Value) -> Vec<(String, String)> {
    let text = |warning: &Value, field: &str| warning[field].as_str().unwrap().to_owned();
    let all = warnings(policy, &api.catalogs().current());
    all.iter().map(|warning| (text(warning, "fieldRef"), text(warning, "warning"))).collect()
}

#[tokio::test]
async fn what_does_not_fit_the_types_is_a_warning() {
    let api = with_namespace().await;
    let deployments = [rule("apps", "v1", "deployments")];
    let one = |expression: &str| json!({"validations": [{"expression": expression}]});
    for (spec, wanted) in [
        (one("object.spec.replicas > 1"), None),
        (one("object.foo == 'bar'"), Some("apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'foo'")),
        (one("object.spec.replicas == 'a'"), Some("found no matching overload for '_==_' applied to '(int, string)'")),
        (one("oldObject.spec.nothing"), Some("undefined field 'nothing'")),
        (one("object.spec.template.spec.containers.all(c, c.image.startsWith('a'))"), None),
        (one("object.spec.template.spec.containers.all(c, c.picture == '')"), Some("undefined field 'picture'")),
        (one("object.metadata.labels['a'] == 'b'"), None),
        (one("object.spec.strategy.rollingUpdate.maxSurge == 1"), None),
        (one("request.foo == ''"), Some("undefined field 'foo'")),
        (one("authorizer.group('').resource('endpoints').check('create').allowed()"), None),
        (one("authorizer.allowed()"), Some("found no matching overload for 'allowed'")),
        (
            json!({"validations": [{"expression": "true", "messageExpression": "object.foo + 114514"}]}),
            Some("undefined field 'foo'"),
        ),
        (
            merged(
                &one("variables.replicas == 'a'"),
                &json!({"variables": [{"name": "replicas", "expression": "object.spec.replicas"}]}),
            ),
            Some("found no matching overload for '_==_' applied to '(int, string)'"),
        ),
        (
            merged(&one("params.data.a == 1"), &json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}})),
            Some("found no matching overload for '_==_' applied to '(string, int)'"),
        ),
        // A kind that nobody serves may be anything.
        (merged(&one("params.a == 1"), &json!({"paramKind": {"apiVersion": "rules.example/v1", "kind": "A"}})), None),
    ] {
        let found = found(&api, &policy(&deployments, &spec));
        match wanted {
            None => assert_eq!(found, [], "{spec}"),
            Some(wanted) => assert!(found.len() == 1 && found[0].1.contains(wanted), "{spec}: {found:?}"),
        }
    }
}

#[tokio::test]
async fn every_kind_that_rules_name_is_compared() {
    let api = with_namespace().await;
    let spec = json!({"validations": [{"expression": "true"}, {"expression": "object.spec.replicas > 1"}]});
    let both = rule("apps", "v1", "deployments");
    let both =
        merged(&both, &json!({"resources": ["deployments", "daemonsets", "controllerrevisions", "deployments/scale"]}));
    let found = found(&api, &policy(&[both], &spec));
    let [(field, warning)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(field, "spec.validations[1].expression");
    let kinds: Vec<&str> =
        warning.lines().filter_map(|line| line.split_once(": ERROR").map(|(kind, _)| kind)).collect();
    assert_eq!(kinds, ["apps/v1, Kind=ControllerRevision", "apps/v1, Kind=DaemonSet"]);
    // Of wildcards and subresources nothing is known.
    let bad = json!({"validations": [{"expression": "object.nothing"}]});
    for rule in [
        rule("apps", "*", "deployments"),
        rule("*", "v1", "deployments"),
        rule("apps", "v1", "*"),
        rule("apps", "v1", "deployments/scale"),
    ] {
        assert_eq!(super::types::found(&api, &policy(&[rule], &bad)), []);
    }
}

#[tokio::test]
async fn the_status_says_what_was_found() {
    let api = with_namespace().await;
    let stop = tokio_util::sync::CancellationToken::new();
    let user = crate::apiserver::User::api_server();
    let client = kube::Client::new(api.router().layer(axum::Extension(user)), "default");
    let (served, token) = (api.api.clone(), stop.clone());
    let running =
        tokio::spawn(async move { crate::validating_admission_policy_status::run(&served, client, token).await });
    let path = format!("{POLICIES}/validatingadmissionpolicies");
    let bad =
        policy(&[rule("apps", "v1", "deployments")], &json!({"validations": [{"expression": "object.foo == 1"}]}));
    made(&api, &path, bad).await;
    let observed = async |name: &str, generation: i64| {
        for _ in 0..500 {
            let policy = call(&api, "GET", &format!("{path}/{name}"), Value::Null).await.body;
            if policy["status"]["observedGeneration"] == generation {
                return policy;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("the status was not written");
    };
    let policy = observed("p", 1).await;
    let warning = &policy["status"]["typeChecking"]["expressionWarnings"][0];
    assert_eq!(warning["fieldRef"], "spec.validations[0].expression");
    assert!(warning["warning"].as_str().unwrap().contains("undefined field 'foo'"), "{warning}");
    let owners = policy["metadata"]["managedFields"].as_array().unwrap();
    assert!(owners.iter().any(|owner| owner["manager"] == "validatingadmissionpolicy-status"
        && owner["operation"] == "Apply"
        && owner["subresource"] == "status"));
    let good = json!({"spec": {"validations": [{"expression": "object.spec.replicas == 1"}]}});
    assert_eq!(call(&api, "PATCH", &format!("{path}/p"), good.clone()).await.code, 200);
    // What became empty by an apply is gone.
    assert_eq!(observed("p", 2).await["status"], json!({"observedGeneration": 2}));
    let other =
        merged(&self::policy(&[rule("apps", "v1", "deployments")], &good["spec"]), &json!({"metadata": {"name": "q"}}));
    made(&api, &path, other).await;
    assert_eq!(observed("q", 1).await["status"], json!({"observedGeneration": 1, "typeChecking": {}}));
    stop.cancel();
    running.await.unwrap();
}
