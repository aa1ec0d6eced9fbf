//! Termination messages.

use serde_json::{Value, json};
use windlass_tests::shared_dir::{container_status, shell};

use crate::case::{Case, text};

crate::cases![
    termination_message_of_the_default_path,
    termination_message_file_mode,
    termination_message_of_another_path_as_non_root,
    termination_message_policy_file_reads_no_log,
    termination_message_fallback_to_logs_on_error,
    termination_message_fallback_prefers_the_file,
    termination_message_fallback_empty_on_success,
    termination_message_fallback_is_cut,
    termination_message_is_its_last_4096_bytes,
    termination_message_as_large_as_a_disk,
    termination_messages_of_a_pod_share_12_kib,
];

fn message(case: &Case<'_>, line: &str, container: Value) -> Value {
    case.shell("p", line, container, json!({"restartPolicy": "Never"}));
    let pod = case.wait("p", "has ended", |p| container_status(p)["state"]["terminated"].is_object());
    container_status(&pod)["state"]["terminated"]["message"].clone()
}

fn fallback() -> Value {
    json!({"terminationMessagePolicy": "FallbackToLogsOnError"})
}

fn termination_message_of_the_default_path(case: &Case<'_>) {
    assert_eq!(message(case, "printf done > /dev/termination-log", json!({})), "done");
}

fn termination_message_file_mode(case: &Case<'_>) {
    let seen = case.run("p", "stat -c '%a %s' /dev/termination-log", json!({}), json!({}));
    assert_eq!(seen, ["666 0"]);
}

fn termination_message_of_another_path_as_non_root(case: &Case<'_>) {
    let container = json!({"terminationMessagePath": "/tmp/own", "securityContext": {"runAsUser": 1000}});
    assert_eq!(message(case, "printf mine > /tmp/own; exit 1", container), "mine");
}

fn termination_message_policy_file_reads_no_log(case: &Case<'_>) {
    assert_eq!(message(case, "echo words; exit 1", json!({})), Value::Null);
}

fn termination_message_fallback_to_logs_on_error(case: &Case<'_>) {
    assert_eq!(message(case, "echo last words; exit 1", fallback()), "last words\n");
}

fn termination_message_fallback_prefers_the_file(case: &Case<'_>) {
    assert_eq!(message(case, "echo log; printf file > /dev/termination-log; exit 1", fallback()), "file");
}

fn termination_message_fallback_empty_on_success(case: &Case<'_>) {
    assert_eq!(message(case, "echo words; exit 0", fallback()), Value::Null);
}

fn termination_message_fallback_is_cut(case: &Case<'_>) {
    // At most 80 lines and 2048 bytes.
    let output = message(case, "for i in $(seq 1000 1200); do echo $i; done; exit 1", fallback());
    let lines: Vec<&str> = text(&output).lines().collect();
    assert_eq!((lines.len(), lines.first(), lines.last()), (80, Some(&"1121"), Some(&"1200")));
}

fn termination_message_is_its_last_4096_bytes(case: &Case<'_>) {
    let output = message(case, "(yes x | head -c 9000; printf end) > /dev/termination-log", json!({}));
    assert_eq!((text(&output).len(), text(&output).ends_with("end")), (4096, true));
}

fn termination_message_as_large_as_a_disk(case: &Case<'_>) {
    let line = "printf end | dd of=/dev/termination-log bs=1 seek=8000000000 conv=notrunc; exit 1";
    let output = message(case, line, json!({}));
    assert_eq!((text(&output).len(), text(&output).ends_with("end")), (4096, true));
    assert!(case.peak_memory_megabytes() < 1024, "{} MiB", case.peak_memory_megabytes());
}

fn termination_messages_of_a_pod_share_12_kib(case: &Case<'_>) {
    let line = "yes x | head -c 9000 > /dev/termination-log";
    let all: Vec<Value> =
        ["a", "b", "c", "d"].iter().map(|name| json!({"name": name, "command": shell(line)})).collect();
    case.pod("p", json!({"restartPolicy": "Never", "containers": all}));
    let pod = case.wait_phase("p", "Succeeded");
    for at in 0..4 {
        let output = &pod["status"]["containerStatuses"][at]["state"]["terminated"]["message"];
        assert_eq!(text(output).len(), 12 * 1024 / 4);
    }
}
