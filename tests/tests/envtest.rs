//! The programs of `windlass envtest install`, in the hands of what starts them as controller-runtime's envtest does. They need neither
//! Docker nor a network namespace.

use std::{path::Path, thread};

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, ReplicaSet},
        authentication::v1::{TokenRequest, TokenReview},
        core::v1::{ConfigMap, Namespace, Pod, ServiceAccount},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams},
};
use serde_json::{Value, json};
use windlass_tests::{DEFAULT_TIMEOUT, Envtest, EnvtestAssets, client};

const MASTERS: Option<&str> = Some("system:masters");

fn block_on<T>(run: impl Future<Output = anyhow::Result<T>>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(run).unwrap_or_else(|error| panic!("{error:#}"))
}

fn object<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object of its type")
}

/// The code of an error of the API.
fn code<T: std::fmt::Debug>(answer: kube::Result<T>) -> u16 {
    match answer {
        Err(kube::Error::Api(status)) => status.code,
        other => panic!("{other:?}"),
    }
}

fn definition() -> CustomResourceDefinition {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    object(json!({
        "metadata": {"name": "ships.envtest.example.com"},
        "spec": {
            "group": "envtest.example.com", "scope": "Namespaced",
            "names": {"plural": "ships", "singular": "ship", "kind": "Ship", "listKind": "ShipList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    }))
}

fn ships(client: &Client) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "envtest.example.com".to_owned(),
        version: "v1".to_owned(),
        api_version: "envtest.example.com/v1".to_owned(),
        kind: "Ship".to_owned(),
        plural: "ships".to_owned(),
    };
    Api::namespaced_with(client.clone(), "default", &resource)
}

async fn eventually_served(client: &Client) -> anyhow::Result<()> {
    let wait = async {
        while ships(client).list(&ListParams::default()).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    Ok(tokio::time::timeout(DEFAULT_TIMEOUT, wait).await?)
}

/// As envtest uses them: a user with a certificate by its own authority, a definition, a restart of the API server alone, and the end.
#[test]
fn objects_last_as_long_as_etcd_and_its_directory() {
    let assets = EnvtestAssets::install();
    let mut envtest = Envtest::start(&assets, None, &[]);
    let admin = envtest.kubeconfig("admin", MASTERS);
    let params = PostParams::default();
    block_on(async {
        let client = client(&admin).await?;
        let _ = Api::<Namespace>::all(client.clone()).get("default").await?;
        let _ = Api::<CustomResourceDefinition>::all(client.clone()).create(&params, &definition()).await?;
        eventually_served(&client).await?;
        let ship = object(json!({
            "apiVersion": "envtest.example.com/v1", "kind": "Ship", "metadata": {"name": "one"}, "spec": {"masts": 3},
        }));
        let _ = ships(&client).create(&params, &ship).await?;
        Ok(())
    });
    envtest.stop_api();
    envtest.start_api();
    block_on(async {
        let client = client(&admin).await?;
        let ship = ships(&client).get("one").await?;
        anyhow::ensure!(ship.data["spec"]["masts"] == 3, "{ship:?}");
        Ok(())
    });
    envtest.stop();
    assert!(envtest.data.path().join("windlass").is_dir(), "the objects are in the directory of etcd");
}

/// A server alone: what other programs of a cluster do stays undone.
#[test]
fn nothing_but_the_server_changes_objects() {
    let assets = EnvtestAssets::install();
    let envtest = Envtest::start(&assets, None, &[]);
    let admin = envtest.kubeconfig("admin", MASTERS);
    block_on(async {
        let client = client(&admin).await?;
        let params = PostParams::default();
        let namespaces = Api::<Namespace>::all(client.clone());
        let mut names: Vec<_> =
            namespaces.list(&ListParams::default()).await?.into_iter().map(|n| n.metadata.name).collect();
        names.sort();
        let names: Vec<&str> = names.iter().flatten().map(String::as_str).collect();
        anyhow::ensure!(names == ["default", "kube-node-lease", "kube-public", "kube-system"], "{names:?}");
        let groups = client.list_api_groups().await?;
        anyhow::ensure!(groups.groups.iter().all(|group| group.name != "metrics.k8s.io"), "{groups:?}");

        let _ = namespaces.create(&params, &object(json!({"metadata": {"name": "a"}}))).await?;
        let labels = json!({"app": "a"});
        let pod = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let deployment =
            json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels}, "template": pod}});
        let _ = Api::<Deployment>::namespaced(client.clone(), "a").create(&params, &object(deployment)).await?;
        // A pod, too, without an account of the namespace.
        let pods = Api::<Pod>::namespaced(client.clone(), "a");
        let bare = json!({"metadata": {"name": "p"}, "spec": pod["spec"]});
        let _ = pods.create(&params, &object(bare)).await?;
        let _ = namespaces.delete("a", &DeleteParams::default()).await?;
        // Long enough for any controller that there might be; nothing is there to wait for.
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        let ending = namespaces.get("a").await?;
        anyhow::ensure!(ending.status.and_then(|status| status.phase).as_deref() == Some("Terminating"));
        anyhow::ensure!(pods.get("p").await?.spec.is_some_and(|spec| spec.node_name.is_none()));
        let accounts = Api::<ServiceAccount>::all(client.clone()).list(&ListParams::default()).await?;
        let sets = Api::<ReplicaSet>::all(client.clone()).list(&ListParams::default()).await?;
        anyhow::ensure!(accounts.items.is_empty() && sets.items.is_empty(), "{accounts:?} {sets:?}");
        Ok(())
    });
}

/// Who a user is and what it may do follows from the certificate and from RBAC; a token is of the issuer in the flags.
#[test]
fn users_have_the_rights_of_their_certificates_and_tokens() {
    let assets = EnvtestAssets::install();
    let envtest = Envtest::start(&assets, None, &[]);
    let (admin, alice) = (envtest.kubeconfig("admin", MASTERS), envtest.kubeconfig("alice", Some("readers")));
    let issuer = format!("{}/", envtest.url());
    block_on(async {
        let params = PostParams::default();
        let (admin, alice) = (client(&admin).await?, client(&alice).await?);
        let configs = |client: &Client| Api::<ConfigMap>::namespaced(client.clone(), "default");
        assert_eq!(code(configs(&alice).list(&ListParams::default()).await), 403);
        let role = json!({"metadata": {"name": "readers"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]});
        let binding = json!({
            "metadata": {"name": "readers"}, "subjects": [{"kind": "Group", "name": "readers"}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "readers"},
        });
        let _ =
            Api::<k8s_openapi::api::rbac::v1::ClusterRole>::all(admin.clone()).create(&params, &object(role)).await?;
        let bindings = Api::<k8s_openapi::api::rbac::v1::ClusterRoleBinding>::all(admin.clone());
        let _ = bindings.create(&params, &object(binding)).await?;
        let _ = configs(&alice).list(&ListParams::default()).await?;

        let accounts = Api::<ServiceAccount>::namespaced(admin.clone(), "default");
        let _ = accounts.create(&params, &object(json!({"metadata": {"name": "robot"}}))).await?;
        let wanted: TokenRequest = object(json!({"spec": {"audiences": [], "expirationSeconds": 3600}}));
        let issued = accounts.create_token_request("robot", &params, &wanted).await?;
        anyhow::ensure!(
            issued.spec.as_ref().is_some_and(|spec| spec.audiences.as_deref() == Some(&[issuer.clone()][..])),
            "{:?}",
            issued.spec
        );
        let token = issued.status.map(|status| status.token).unwrap_or_default();
        let review: TokenReview = object(json!({"metadata": {}, "spec": {"token": token}}));
        let review = Api::<TokenReview>::all(admin.clone()).create(&params, &review).await?;
        let name = review.status.and_then(|status| status.user).and_then(|user| user.username);
        anyhow::ensure!(name.as_deref() == Some("system:serviceaccount:default:robot"), "{name:?}");
        Ok(())
    });
}

/// Flags that restrict do so.
#[test]
fn restrictions_are_in_force() {
    let assets = EnvtestAssets::install();
    let envtest = Envtest::start(&assets, None, &["--authorization-mode=AlwaysDeny", "--allow-privileged=false"]);
    // The later of two lists adds to the first, as in kube-apiserver: RBAC is asked, too, and knows nothing of alice.
    let (admin, alice) = (envtest.kubeconfig("admin", MASTERS), envtest.kubeconfig("alice", None));
    block_on(async {
        let (admin, alice) = (client(&admin).await?, client(&alice).await?);
        let pods = |client: &Client| Api::<Pod>::namespaced(client.clone(), "default");
        let denied = pods(&alice).list(&ListParams::default()).await.map(drop).unwrap_err().to_string();
        anyhow::ensure!(denied.contains("Everything is forbidden."), "{denied}");
        let container = json!({"name": "c", "image": "i", "securityContext": {"privileged": true}});
        let pod = object(json!({"metadata": {"name": "p"}, "spec": {"containers": [container]}}));
        let refused = pods(&admin).create(&PostParams::default(), &pod).await.map(drop).unwrap_err().to_string();
        let expected = "spec.containers[0].securityContext.privileged: Forbidden: disallowed by cluster policy";
        anyhow::ensure!(refused.contains(expected), "{refused}");
        Ok(())
    });
    for (flag, error) in [
        ("--insecure-port=0", "Error: unknown flag: --insecure-port"),
        ("--authorization-mode=Webhook", "Error: --authorization-mode=Webhook is not possible with windlass"),
        ("--runtime-config=batch/v1=false", "Error: --runtime-config=batch/v1=false is not possible with windlass"),
    ] {
        let mut other = Envtest::start(&assets, None, &[]);
        other.stop_api();
        let output = other.api_command(&[flag]).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(error), "{flag}: {said}");
    }
}

/// Test programs of a project run side by side, and not as root.
#[test]
fn several_run_at_once_as_an_ordinary_user() {
    let assets = EnvtestAssets::install();
    let run = |name: &str| {
        let mut envtest = Envtest::start(&assets, Some("nobody"), &[]);
        let admin = envtest.kubeconfig("admin", MASTERS);
        block_on(async {
            let configs = Api::<ConfigMap>::namespaced(client(&admin).await?, "default");
            let _ = configs.create(&PostParams::default(), &object(json!({"metadata": {"name": name}}))).await?;
            let names =
                configs.list(&ListParams::default()).await?.into_iter().filter_map(|config| config.metadata.name);
            let names: Vec<String> = names.collect();
            anyhow::ensure!(names == [name], "{names:?}");
            Ok(())
        });
        let (api, _) = envtest.pids();
        let owner =
            std::os::unix::fs::MetadataExt::uid(&Path::new(&format!("/proc/{api}")).metadata().expect("it runs"));
        assert_ne!(owner, 0, "it runs as root");
        envtest.stop();
    };
    thread::scope(|scope| {
        for name in ["one", "two", "three"] {
            let _ = scope.spawn(move || run(name));
        }
    });
}
