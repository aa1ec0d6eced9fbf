//! Container logs, through kubectl and as files for log shippers.

use std::{fs, process::Stdio};

use windlass_tests::{DEFAULT_TIMEOUT, Testbed, eventually};

use crate::{container_id, shell_pod};

#[test]
fn logs_as_kubectl_asks_for_them() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: two}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n  \
         - {name: a, image: 'windlass/busybox:1', command: [sh, -c, 'for i in 1 2 3 4 5; do echo line $i; done; sleep 1; echo end >&2; sleep 3600']}\n  \
         - {name: b, image: 'windlass/busybox:1', command: [sh, -c, 'echo from b; sleep 3600']}\n",
    );
    kubectl.apply(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: unpulled}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n  \
         - {name: main, image: 'windlass/none:1', imagePullPolicy: Never}\n",
    );
    let logs = |args: &[&str]| kubectl.try_run(&[&["logs"], args].concat());
    eventually(DEFAULT_TIMEOUT, "both containers have printed", || {
        anyhow::ensure!(logs(&["two", "-c", "a"])?.contains("end") && logs(&["two", "-c", "b"])?.contains("from b"));
        Ok(())
    });
    let get = |args: &[&str]| logs(&[&["two", "-c", "a"], args].concat()).expect("the log");
    assert_eq!(get(&[]), "line 1\nline 2\nline 3\nline 4\nline 5\nend\n");
    assert_eq!(get(&["--tail=2"]), "line 5\nend\n");
    assert_eq!(get(&["--tail=0"]), "");
    assert_eq!(get(&["--limit-bytes=10"]), "line 1\nlin");
    assert_eq!(get(&["--since-time=2000-01-01T00:00:00+02:00", "--tail=1"]), "end\n");
    assert_eq!(get(&["--since-time=2999-01-01T00:00:00Z"]), "");
    assert_eq!(get(&["--since=1h", "--limit-bytes=6"]), "line 1");
    let stamped = get(&["--timestamps", "--tail=2"]);
    let (time, rest) = stamped.lines().next().expect("a line").split_once(' ').expect("a time");
    assert!(time.len() == 30 && time.ends_with('Z') && rest == "line 5", "{stamped}");
    let all = kubectl.run(&["logs", "two", "--all-containers", "--prefix", "--tail=1"]);
    assert!(all.contains("[pod/two/a] end") && all.contains("[pod/two/b] from b"), "{all}");

    let path = "/api/v1/namespaces/default/pods/two/log?container=a";
    for (refused, why) in [
        (logs(&["two", "-c", "c"]), "container c is not valid for pod two"),
        (logs(&["nobody"]), "pods \"nobody\" not found"),
        (logs(&["two", "-c", "a", "--previous"]), "previous terminated container \"a\" in pod \"two\" not found"),
        (logs(&["unpulled"]), "container \"main\" in pod \"unpulled\" is waiting to start: ErrImageNeverPull"),
        (
            kubectl.try_run(&["get", "--raw", "/api/v1/namespaces/default/pods/two/log"]),
            "a container name must be specified",
        ),
        (
            kubectl.try_run(&["get", "--raw", &format!("{path}&stream=Stdout")]),
            "PodLogOptions \"two\" is invalid: stream: Forbidden",
        ),
        (kubectl.try_run(&["get", "--raw", &format!("{path}&tailLines=-1")]), "must be greater than or equal to 0"),
        (kubectl.try_run(&["get", "--raw", &format!("{path}&sinceTime=yesterday")]), "sinceTime"),
    ] {
        let output = refused.expect_err(why).to_string();
        assert!(output.contains(why), "{output}");
    }

    // Between two attempts the last one is both the current and the previous log; then it is only the previous one.
    kubectl.apply(&shell_pod("again", "Always", "echo attempt; exit 3"));
    eventually(DEFAULT_TIMEOUT, "it has failed", || {
        anyhow::ensure!(logs(&["again", "--previous"])? == "attempt\n");
        Ok(())
    });
}

/// The number of printed lines: more than fit into one file.
const LINES: usize = 3000;

#[test]
fn a_follower_sees_every_line_through_rotations() {
    let testbed = Testbed::new();
    let mut windlass =
        testbed.windlass().with(&["--container-log-max-size", "64Ki", "--container-log-max-files", "20"]);
    let kubectl = windlass.up();
    let line = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo line $i of a log that is rotated; \
                [ $((i % 300)) != 0 ] || sleep 0.3; done; touch /tmp/done; sleep 3600";
    kubectl.apply(&shell_pod("loud", "Never", line));
    let pod = eventually(DEFAULT_TIMEOUT, "it runs", || Ok(kubectl.ready_pods("test=loud", 1)?.remove(0)));
    let id = container_id(&pod);
    let expected: String = (1..=LINES).map(|i| format!("line {i} of a log that is rotated\n")).collect();

    let mut follow = kubectl.command();
    let follow = follow.args(["logs", "--follow", "loud"]).stdout(Stdio::piped()).spawn().expect("kubectl");
    let files = testbed.dir().join("docker/containers").join(&id);
    eventually(DEFAULT_TIMEOUT, "all is printed", || {
        anyhow::ensure!(kubectl.run(&["logs", "loud", "--tail=1"]).starts_with("line 3000 "));
        Ok(())
    });
    let rotated = fs::read_dir(&files).expect("the log's folder").flatten();
    let rotated = rotated.filter(|f| f.file_name().to_string_lossy().contains("json.log.")).count();
    assert!(rotated >= 3, "the log was rotated {rotated} times only");

    // All rotated files together: the whole log, its end, and the files that shippers follow.
    assert_eq!(kubectl.run(&["logs", "loud"]), expected);
    let tail: Vec<&str> = expected.lines().skip(LINES - 2000).collect();
    assert_eq!(kubectl.run(&["logs", "loud", "--tail=2000"]).lines().collect::<Vec<_>>(), tail);
    let uid = pod["metadata"]["uid"].as_str().expect("a uid");
    let links = [
        testbed.dir().join(format!("log/pods/default_loud_{uid}/main/0.log")),
        testbed.dir().join(format!("log/containers/loud_default_main-{id}.log")),
    ];
    let newest = format!("{id}-json.log");
    for link in &links {
        let target = fs::canonicalize(link).expect("the link leads somewhere");
        assert!(target.ends_with(&newest), "{}", target.display());
    }

    // After a restart of the agent links and log are the same, and the end of the container ends the follower.
    windlass.kill();
    let kubectl = windlass.up();
    assert_eq!(kubectl.run(&["logs", "loud"]), expected);
    for link in &links {
        assert!(fs::canonicalize(link).is_ok_and(|t| t.ends_with(&newest)), "{}", link.display());
    }
    let seen = follow.wait_with_output().expect("kubectl");
    let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
    assert!(seen == expected, "{} bytes were followed of {}", seen.len(), expected.len());
    let mut follow = kubectl.command();
    let follow = follow.args(["logs", "-f", "loud", "--tail=1"]).stdout(Stdio::piped()).spawn().expect("kubectl");
    testbed.docker(&["kill", &id]);
    let seen = follow.wait_with_output().expect("kubectl");
    assert!(seen.status.success() && seen.stdout.starts_with(b"line 3000 "), "{seen:?}");
}
