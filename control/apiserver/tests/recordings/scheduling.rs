//! Records what a real kube-scheduler decides in the cases of `control/scheduler/src/tests/recorded.tsv`, and checks that it still
//! does: `UPDATE_RECORDED=1 cargo test -p windlass-control --test recordings scheduling` writes the cases that differ.

use std::{collections::BTreeSet, fs, time::Duration};

use serde_json::{Value, json};
use windlass_tests::cluster::{ControlPlane, Part};

use crate::{
    is_recording,
    real_server::RealServer,
    recorded::Asking,
    scheduling_cases::{Case, Decision, priority},
};

/// How often a case is asked that differs: of equally good nodes kube-scheduler takes any, and it may not have seen all objects
/// before the pod.
const TRIES: u32 = 12;
/// How long kube-scheduler has to see the objects of a case; longer in each try.
const PAUSE: Duration = Duration::from_millis(400);

/// How often it is looked whether kube-scheduler has decided.
const LOOKS: usize = 1000;
const INTERVAL: Duration = Duration::from_millis(20);
/// How long pods may take to be removed one after the other.
const REMOVAL: Duration = Duration::from_millis(300);

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Compares or writes the file.
pub(crate) async fn record(server: RealServer, plane: &ControlPlane) -> anyhow::Result<()> {
    plane.begin(Part::Scheduler);
    let mut asking = Asking::new(server);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../scheduler/src/tests/recorded.tsv");
    let text = fs::read_to_string(file)?;
    let (mut lines, mut differ, mut cases) = (String::new(), Vec::new(), 0);
    for line in text.lines() {
        let mut written = line.to_owned();
        if let Some(mut case) = Case::read(line) {
            cases += 1;
            if let Some(decision) = difference(&mut asking, &case).await? {
                differ.push(format!("{}:\n  recorded: {:?}\n  now:      {decision:?}", case.name, case.decision));
                case.decision = decision;
                written = case.line();
            }
        }
        lines.push_str(&written);
        lines.push('\n');
    }
    println!("{cases} cases, {} of which differ", differ.len());
    if is_recording() {
        fs::write(file, lines)?;
    }
    anyhow::ensure!(cases > 100, "only {cases} cases were found");
    anyhow::ensure!(differ.is_empty() || is_recording(), "{}", differ.join("\n"));
    Ok(())
}

/// What kube-scheduler decides, if that is never what was recorded.
async fn difference(asking: &mut Asking<RealServer>, case: &Case<'_>) -> anyhow::Result<Option<Decision>> {
    let mut last = None;
    for attempt in 1..=TRIES {
        asking.start_afresh().await?;
        let decision = decision(asking, case, PAUSE * attempt).await?;
        if decision == case.decision {
            return Ok(None);
        }
        last = Some(decision);
    }
    Ok(last)
}

/// What kube-scheduler decides about the pod of a case, once it had so long to see the objects.
async fn decision(asking: &Asking<RealServer>, case: &Case<'_>, pause: Duration) -> anyhow::Result<Decision> {
    let (objects, pod) = (case.objects(), case.pod());
    let classes = objects.iter().chain([&pod]).filter_map(|object| object["spec"]["priorityClassName"].as_str());
    for class in classes.filter(|class| !class.starts_with("system-")).collect::<BTreeSet<_>>() {
        let (value, policy) = priority(class);
        let body = json!({"metadata": {"name": class}, "value": value, "preemptionPolicy": policy});
        asking.must(201, "POST", "/apis/scheduling.k8s.io/v1/priorityclasses", &body).await?;
    }
    // Admission knows classes by a watch.
    tokio::time::sleep(pause).await;
    for object in &objects {
        create(asking, object).await?;
    }
    tokio::time::sleep(pause).await;
    create(asking, &pod).await?;
    let path = format!("{PODS}/{}", pod["metadata"]["name"].as_str().unwrap_or(""));
    for _ in 0..LOOKS {
        let pod = asking.must(200, "GET", &path, &Value::Null).await?;
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let refused = conditions.find(|one| one["type"] == "PodScheduled" && one["status"] == "False");
        let (node, nominated) = (text(&pod["spec"]["nodeName"]), text(&pod["status"]["nominatedNodeName"]));
        if !node.is_empty() {
            return Ok(Decision { node, ..Decision::default() });
        }
        if let Some(refused) = refused {
            let victims = if nominated.is_empty() { Vec::new() } else { victims(asking, &objects).await? };
            return Ok(Decision { message: text(&refused["message"]), node, nominated, victims });
        }
        tokio::time::sleep(INTERVAL).await;
    }
    anyhow::bail!("{}: the pod is neither scheduled nor refused", case.name)
}

/// The path of all objects of a kind.
fn collection(object: &Value) -> anyhow::Result<&'static str> {
    Ok(match object["kind"].as_str().unwrap_or("") {
        "Node" => "/api/v1/nodes",
        "Pod" => PODS,
        "PersistentVolume" => "/api/v1/persistentvolumes",
        "PersistentVolumeClaim" => "/api/v1/namespaces/default/persistentvolumeclaims",
        "StorageClass" => "/apis/storage.k8s.io/v1/storageclasses",
        "Service" => "/api/v1/namespaces/default/services",
        "PodDisruptionBudget" => "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
        other => anyhow::bail!("{other} is no kind of these cases"),
    })
}

/// Creates an object as it is in a case: admission taints new nodes, and a status is written on its own.
async fn create(asking: &Asking<RealServer>, object: &Value) -> anyhow::Result<()> {
    let all = collection(object)?;
    let one = format!("{all}/{}", object["metadata"]["name"].as_str().unwrap_or(""));
    let mut made = asking.must(201, "POST", all, object).await?;
    if object["kind"] == "Node" {
        made["spec"]["taints"] = object["spec"]["taints"].clone();
        made = asking.must(200, "PUT", &one, &made).await?;
    }
    if let Some(status) = object["status"].as_object() {
        if made["status"].is_null() {
            made["status"] = json!({});
        }
        made["status"].as_object_mut().into_iter().for_each(|all| all.extend(status.clone()));
        asking.must(200, "PUT", &format!("{one}/status"), &made).await?;
    }
    Ok(())
}

/// The names of the pods that kube-scheduler removes, as soon as it has removed all.
async fn victims(asking: &Asking<RealServer>, objects: &[Value]) -> anyhow::Result<Vec<String>> {
    let mut before = Vec::new();
    for _ in 0..LOOKS {
        tokio::time::sleep(REMOVAL).await;
        let found = asking.must(200, "GET", PODS, &Value::Null).await?;
        let items = found["items"].as_array().map_or(&[][..], Vec::as_slice);
        let stays = |name: &str| {
            items.iter().any(|pod| pod["metadata"]["name"] == name && pod["metadata"]["deletionTimestamp"].is_null())
        };
        let pods = objects.iter().filter(|object| object["kind"] == "Pod");
        let names = pods.filter_map(|pod| pod["metadata"]["name"].as_str());
        let mut victims: Vec<String> = names.filter(|name| !stays(name)).map(str::to_owned).collect();
        victims.sort();
        if !victims.is_empty() && victims == before {
            return Ok(victims);
        }
        before = victims;
    }
    anyhow::bail!("the pod is nominated, and no other is removed")
}
