//! A killed container is restarted.

use windlass_tests::LentNode;

use crate::{
    container_id,
    shared_dir::{container_status, wait_for},
    shell_pod,
};

#[test]
fn a_container_that_is_killed_comes_back_at_once() {
    let node = LentNode::take();
    let (testbed, kubectl) = (node.testbed(), node.kubectl());
    kubectl.apply(&shell_pod("victim", "Always", "exec sleep 100000"));
    let before = wait_for(&kubectl, "victim", "runs", |p| container_status(p)["ready"] == true);
    testbed.docker(&["kill", &container_id(&before)]);
    let after = wait_for(&kubectl, "victim", "runs again", |p| {
        container_status(p)["restartCount"] == 1 && container_status(p)["ready"] == true
    });
    assert_ne!(container_id(&before), container_id(&after));
    assert_eq!(before["status"]["podIP"], after["status"]["podIP"], "the pod keeps its address");
    assert_eq!(container_status(&after)["lastState"]["terminated"]["exitCode"], 137);
    let listed = kubectl.run(&["get", "pod", "victim"]);
    assert!(listed.contains("1 (") && listed.contains(" ago)"), "{listed}");
    assert!(kubectl.run(&["logs", "victim", "--previous"]).is_empty());
}
