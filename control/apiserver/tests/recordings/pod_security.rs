//! Records what PodSecurity of a real API server says of the pods of `src/plugin/admission/pod_security/tests/recorded.tsv`, and
//! checks that it still says what is recorded: `UPDATE_RECORDED=1 cargo test -p windlass-control --test recordings
//! pod_security` writes the pods that differ.

use std::fs;

use serde_json::json;
use windlass_tests::cluster::ControlPlane;

use crate::{
    is_recording,
    pod_security_cases::{Case, Recorded},
    real_server::RealServer,
    recorded::{Asking, warnings_of},
};

/// Compares or writes the file.
pub(crate) async fn record(server: RealServer, _: &ControlPlane) -> anyhow::Result<()> {
    let asking = Asking::new(server);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/plugin/admission/pod_security/tests/recorded.tsv");
    let text = fs::read_to_string(file)?;
    let mut recorded = Recorded::read(&text);
    for (number, level) in recorded.levels.iter().enumerate() {
        make_namespace(&asking, &namespace(number), level).await?;
    }
    let mut differ = Vec::new();
    for case in &mut recorded.cases {
        let said = said_of(&asking, case, recorded.levels.len()).await?;
        if said != case.said {
            differ.push(format!("{}:\n  recorded: {:?}\n  now:      {said:?}", case.name, case.said));
            case.said = said;
        }
    }
    println!("{} pods at {} levels, {} pods differ", recorded.cases.len(), recorded.levels.len(), differ.len());
    if is_recording() {
        fs::write(file, recorded.text())?;
    }
    anyhow::ensure!(differ.is_empty() || is_recording(), "{}", differ.join("\n"));
    Ok(())
}

fn namespace(number: usize) -> String {
    format!("level-{number}")
}

/// A namespace that warns of pods which violate a level.
async fn make_namespace(asking: &Asking<RealServer>, name: &str, level: &str) -> anyhow::Result<()> {
    let (level, version) = level.split_once(':').unwrap_or((level, "latest"));
    let labels = json!({"pod-security.kubernetes.io/warn": level, "pod-security.kubernetes.io/warn-version": version});
    asking.must(201, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": name, "labels": labels}})).await?;
    let accounts = format!("/api/v1/namespaces/{name}/serviceaccounts");
    asking.must(201, "POST", &accounts, &json!({"metadata": {"name": "default"}})).await?;
    Ok(())
}

/// What is said of a pod in each namespace.
async fn said_of(asking: &Asking<RealServer>, case: &Case<'_>, levels: usize) -> anyhow::Result<Vec<String>> {
    let mut said = Vec::new();
    for number in 0..levels {
        let path = format!("/api/v1/namespaces/{}/pods?dryRun=All", namespace(number));
        let reply = asking.call("POST", &path, &case.object()).await?;
        anyhow::ensure!(reply.code == 201, "{}: {} {}", case.name, reply.code, reply.body);
        let violation = warnings_of(&reply).into_iter().find_map(|warning| {
            let rest = warning.strip_prefix("would violate PodSecurity \"")?;
            Some(rest.split_once("\": ")?.1.to_owned())
        });
        said.push(violation.unwrap_or_default());
    }
    Ok(said)
}
