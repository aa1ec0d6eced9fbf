//! Tokens that are asked for: how long they live, and what they may be bound to.

use super::*;
use crate::plugin::authenticator::ServiceAccountTokens;

/// An API that signs tokens, with one account and a pod of another one.
async fn signing(max_token_seconds: Option<i64>) -> Api {
    let tokens = TokenIssuer::from_pem(&rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let api = api_with(Some(tokens), max_token_seconds);
    for (path, body) in [
        ("/api/v1/namespaces", json!({"metadata": {"name": "n"}})),
        ("/api/v1/namespaces/n/serviceaccounts", json!({"metadata": {"name": "a"}})),
        (PODS, pod("p")),
    ] {
        let made = call(&api, "POST", path, body).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    api
}

async fn token(api: &Api, spec: Value) -> Reply {
    call(api, "POST", "/api/v1/namespaces/n/serviceaccounts/a/token", json!({"spec": spec})).await
}

/// How long an answer says that its token lives, and how long the token itself does.
fn lives(reply: &Reply) -> (i64, i64) {
    use base64::Engine as _;
    let token = reply.body["status"]["token"].as_str().unwrap();
    let claims = token.split('.').nth(1).unwrap();
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    let life = claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap();
    (reply.body["spec"]["expirationSeconds"].as_i64().unwrap(), life)
}

#[tokio::test]
async fn a_token_has_the_requested_lifetime_up_to_the_maximum() {
    let (free, bounded) = (signing(None).await, signing(Some(7200)).await);
    for (asked, alone, most) in [(600, 600, 600), (7200, 7200, 7200), (7201, 7201, 7200), (1_i64 << 32, 1 << 32, 7200)]
    {
        assert_eq!(lives(&token(&free, json!({"expirationSeconds": asked})).await), (alone, alone));
        assert_eq!(lives(&token(&bounded, json!({"expirationSeconds": asked})).await), (most, most));
    }
    assert_eq!(lives(&token(&bounded, json!({})).await), (3600, 3600));
    for (asked, words) in [(599, "less than 10 minutes"), ((1_i64 << 32) + 1, "larger than 2^32 seconds")] {
        let refused = token(&bounded, json!({"expirationSeconds": asked})).await;
        assert_eq!(refused.code, 422, "{}", refused.body);
        assert!(refused.body["message"].as_str().unwrap().contains(words), "{}", refused.body);
    }
}

#[tokio::test]
async fn a_bound_token_needs_an_existing_object_of_the_account() {
    let api = signing(None).await;
    let bound = |kind: &str, name: &str, uid: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}});
    for (spec, code, words) in [
        (bound("Pod", "p", ""), 400, "to pod running with different serviceaccount name"),
        (bound("Pod", "gone", ""), 404, "pods \"gone\" not found"),
        (bound("Secret", "gone", ""), 404, "secrets \"gone\" not found"),
        (bound("ConfigMap", "m", ""), 400, "cannot bind token to object of kind \"ConfigMap\""),
    ] {
        let refused = token(&api, spec).await;
        assert_eq!(refused.code, code, "{}", refused.body);
        assert!(refused.body["message"].as_str().unwrap().contains(words), "{}", refused.body);
    }
    let own = json!({"metadata": {"name": "own"}, "spec": {"serviceAccountName": "a", "containers": [{"name": "c", "image": "i"}]}});
    let made = call(&api, "POST", PODS, own).await;
    let uid = made.body["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(token(&api, bound("Pod", "own", &uid)).await.code, 201);
    let other = token(&api, bound("Pod", "own", "00000000-0000-4000-8000-000000000000")).await;
    assert_eq!(other.code, 409, "{}", other.body);
    assert!(other.body["message"].as_str().unwrap().contains("does not match the UID in record"), "{}", other.body);
}

#[tokio::test]
async fn a_review_answers_the_audiences_that_the_token_is_for() {
    let api = signing(None).await;
    let given = token(&api, json!({"audiences": ["a", "b", "c"]})).await.body["status"]["token"].clone();
    let review = async |audiences: Value| {
        let spec = json!({"token": given, "audiences": audiences});
        call(&api, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", json!({"spec": spec})).await.body["status"]
            .take()
    };
    for (asked, of) in [(json!(["a"]), json!(["a"])), (json!(["c", "z", "a"]), json!(["c", "a"]))] {
        let status = review(asked.clone()).await;
        assert_eq!((&status["authenticated"], &status["audiences"]), (&json!(true), &of), "{asked}");
        assert_eq!(status["user"]["username"], "system:serviceaccount:n:a");
    }
    for (asked, target) in [(json!(["z"]), "z"), (json!([]), "https://kubernetes.default.svc")] {
        let error = format!(
            "[invalid bearer token, token audiences [\"a\" \"b\" \"c\"] is invalid for the target audiences [{target:?}]]"
        );
        assert_eq!(review(asked).await, json!({"user": {}, "error": error}));
    }
}

#[tokio::test]
async fn a_caller_may_list_what_it_may_do() {
    let api = signing(None).await;
    rbac::add_default_roles(&api).await;
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let review = json!({"spec": {"namespace": "n"}}).to_string();
    for (user, incomplete, first) in [
        (User::internal("t"), false, json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})),
        (
            User::node("n1"),
            true,
            json!({"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]}),
        ),
    ] {
        let status =
            send(&api, &user, "POST", path, "application/json", "application/json", &review).await.body["status"]
                .take();
        assert_eq!((&status["incomplete"], &status["resourceRules"][0]), (&json!(incomplete), &first), "{status}");
        assert_eq!(status["evaluationError"].is_string(), incomplete);
    }
}

#[tokio::test]
async fn service_accounts_find_the_keys_of_tokens() {
    let api = signing(None).await;
    rbac::add_default_roles(&api).await;
    let account = User {
        name: "system:serviceaccount:n:a".to_owned(),
        groups: vec!["system:serviceaccounts".to_owned()],
        ..User::default()
    };
    let get = async |user: &User, path: &str| send(&api, user, "GET", path, "", "*/*", "").await;
    let configuration = get(&account, "/.well-known/openid-configuration").await;
    assert_eq!(configuration.code, 200, "{}", configuration.body);
    let keys = configuration.body["jwks_uri"].as_str().unwrap();
    let path = keys.strip_prefix(configuration.body["issuer"].as_str().unwrap()).unwrap();
    let keys = get(&account, path).await;
    assert_eq!((keys.code, &keys.body["keys"][0]["alg"]), (200, &json!("ES256")), "{}", keys.body);
    // Only by the role, and only read.
    let eve = User { name: "eve".to_owned(), ..User::default() };
    assert_eq!(get(&eve, path).await.code, 403);
    assert_eq!(call(&api, "POST", path, json!({})).await.code, 405);
}

#[tokio::test]
async fn a_token_of_a_pod_tells_where_the_pod_is() {
    let api = signing(None).await;
    let node = call(&api, "POST", "/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    assert_eq!(node.code, 201, "{}", node.body);
    for (name, node_name) in [("here", "n1"), ("lost", "gone")] {
        let spec =
            json!({"serviceAccountName": "a", "nodeName": node_name, "containers": [{"name": "c", "image": "i"}]});
        let made = call(&api, "POST", PODS, json!({"metadata": {"name": name}, "spec": spec})).await;
        assert_eq!(made.code, 201, "{}", made.body);
        let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": name});
        let given = token(&api, json!({"boundObjectRef": reference})).await.body["status"]["token"].take();
        let review = json!({"spec": {"token": given}});
        let status =
            call(&api, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", review).await.body["status"].take();
        let extra = |key: &str| status["user"]["extra"][&format!("authentication.kubernetes.io/{key}")].clone();
        assert_eq!((extra("pod-name"), extra("pod-uid")), (json!([name]), json!([made.body["metadata"]["uid"]])));
        let uid = if node_name == "n1" { json!([node.body["metadata"]["uid"]]) } else { Value::Null };
        assert_eq!((extra("node-name"), extra("node-uid")), (json!([node_name]), uid), "{status}");
        assert!(extra("credential-id")[0].as_str().unwrap().starts_with("JTI="), "{status}");
    }
    // A token may be bound to a node alone, and ends with it.
    let reference = json!({"apiVersion": "v1", "kind": "Node", "name": "n1"});
    let given = token(&api, json!({"boundObjectRef": reference})).await.body["status"]["token"].take();
    let review = json!({"spec": {"token": given}});
    let known = async || {
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        call(&api, "POST", path, review.clone()).await.body["status"]["authenticated"] == true
    };
    assert!(known().await);
    call(&api, "DELETE", "/api/v1/nodes/n1", json!({})).await;
    assert!(!known().await);
}

#[tokio::test]
async fn a_token_of_what_is_deleted_is_good_for_a_minute() {
    let pem = rcgen::KeyPair::generate().unwrap().serialize_pem();
    let issuer = || TokenIssuer::from_pem(&pem).unwrap();
    let api = api_with(Some(issuer()), None);
    let held = |name: &str| json!({"metadata": {"name": name, "finalizers": ["x/y"]}});
    let mut own = pod("own");
    own["metadata"] = held("own")["metadata"].clone();
    (own["spec"]["nodeName"], own["spec"]["serviceAccountName"]) = (json!("n1"), json!("a"));
    let accounts = "/api/v1/namespaces/n/serviceaccounts";
    let secrets = "/api/v1/namespaces/n/secrets";
    let nodes = "/api/v1/nodes";
    call(&api, "POST", "/api/v1/namespaces", json!({"metadata": {"name": "n"}})).await;
    for (path, body) in [(accounts, held("a")), (PODS, own), (secrets, held("s")), (nodes, held("n1"))] {
        let made = call(&api, "POST", path, body).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    let (tokens, uses) = (Arc::new(issuer()), Arc::default());
    let authenticator = ServiceAccountTokens { store: api.store().clone(), tokens, uses };
    let is_good = |token: &str, seconds: i64| {
        let at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
        authenticator.authenticate_at(token, &[], at).is_ok()
    };
    // The account last: all tokens are of it.
    let kinds = [("Pod", PODS, "own"), ("Secret", secrets, "s"), ("Node", nodes, "n1"), ("", accounts, "a")];
    for (kind, path, name) in kinds {
        let bound = json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}});
        let given = token(&api, if kind.is_empty() { json!({}) } else { bound }).await;
        assert_eq!(given.code, 201, "{}", given.body);
        let given = given.body["status"]["token"].as_str().unwrap();
        assert!(is_good(given, 300), "{name}");
        let deleted = call(&api, "DELETE", &format!("{path}/{name}"), json!({"gracePeriodSeconds": 1})).await;
        assert_eq!(deleted.code, 200, "{}", deleted.body);
        assert!(is_good(given, 30) && !is_good(given, 300), "{name}, held by its finalizer");
    }
}
