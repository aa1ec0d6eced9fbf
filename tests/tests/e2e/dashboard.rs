//! The page on the read-only port, in a real browser.

use serde_json::Value;
use windlass_tests::{Browser, DEFAULT_TIMEOUT, Testbed, eventually};

use crate::shell_pod;

/// A pod that uses some of its CPU and memory, writes to the disk, and has a secret.
pub(crate) const BUSY: &str = r#"
apiVersion: v1
kind: Pod
metadata: {name: busy}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: windlass/busybox:1
    command: [sh, -c, "while :; do dd if=/dev/zero of=/data/x bs=64k count=80 2>/dev/null; sync; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; done"]
    env: [{name: PASSWORD, value: hunter2}]
    resources: {requests: {cpu: 200m, memory: 8Mi}, limits: {cpu: 400m, memory: 32Mi}}
    volumeMounts: [{name: data, mountPath: /data}]
  - name: side
    image: windlass/busybox:1
    command: [sleep, "100000"]
    resources: {limits: {cpu: 100m, memory: 16Mi}}
  volumes: [{name: data, emptyDir: {}}]
"#;

const PAGE: &str = "http://127.0.0.1:10255/";

/// Waits until an expression in the page is true.
fn holds(browser: &mut Browser, what: &str, expression: &str) {
    eventually(DEFAULT_TIMEOUT, what, || {
        let value = browser.value(expression)?;
        anyhow::ensure!(
            value == true,
            "{expression} is {value}; the page says {}",
            browser.value("get('link').title")?
        );
        Ok(())
    });
}

/// Bounds and marks of each graph as drawn.
fn drawn(browser: &mut Browser) -> Value {
    let expression =
        "[...graphs].map(([key, g]) => ({key, points: g.data[0].length, bounds: g.bounds.map(b => [b.label, b.value]),
        marks: g.marks.length, ink: (() => { const c = g.root.querySelector('canvas'); if (!c) return 0;
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let n = 0;
        for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n; })()}))";
    browser.value(expression).expect("the page tells its graphs")
}

fn graph<'a>(all: &'a Value, name: &str) -> &'a Value {
    all.as_array()
        .and_then(|all| all.iter().find(|g| g["key"].as_str().is_some_and(|k| k.ends_with(name))))
        .unwrap_or(&Value::Null)
}

#[test]
fn the_page_shows_node_pods_and_containers_and_moves_on() {
    let testbed = Testbed::new();
    let mut windlass = testbed.windlass();
    let kubectl = windlass.up();
    kubectl.apply(BUSY);
    kubectl.apply(&shell_pod("crashes", "Always", "sleep 4; exit 3"));
    kubectl.apply(&shell_pod("rests", "Always", "exec sleep 100000"));
    kubectl
        .apply(&shell_pod("never-starts", "Always", "true").replace("windlass/busybox:1", "windlass/no-such-image:1"));
    eventually(DEFAULT_TIMEOUT, "a container was started again", || {
        let pod = kubectl.json(&["pod", "crashes"])?;
        anyhow::ensure!(pod["status"]["containerStatuses"][0]["restartCount"].as_u64() >= Some(1));
        Ok(())
    });

    let mut browser = Browser::new(&testbed);
    browser.screen(1440, 900, false, "light");
    browser.open(PAGE);
    holds(&mut browser, "the page is live", "document.body.dataset.rounds >= 3 && get('link').textContent === 'live'");
    holds(&mut browser, "the pods are listed", "document.querySelectorAll('#rows tr').length === 4");
    assert_eq!(browser.value("document.title").unwrap(), "node · Windlass");
    holds(
        &mut browser,
        "four graphs of the node are drawn",
        "graphs.size === 4 && [...graphs.values()].every(g => g.plot)",
    );
    let node = drawn(&mut browser);
    assert!(node.as_array().unwrap().iter().all(|g| g["ink"].as_u64() > Some(2000)), "{node}");
    assert_eq!(graph(&node, "cpu")["bounds"][0][0], "capacity", "{node}");
    let text = browser.value("document.body.innerText").unwrap().to_string();
    assert!(text.contains("busy") && text.contains("of 500m"), "{text}");
    holds(
        &mut browser,
        "what a pod waits for is told",
        "/ErrImagePull|ImagePullBackOff/.test(get('rows').textContent)",
    );

    // It updates by itself.
    let before = browser.value("Number(document.body.dataset.rounds)").unwrap();
    let last = browser.value("graphs.values().next().value.data[0].at(-1)").unwrap();
    holds(&mut browser, "the page asks again", &format!("document.body.dataset.rounds > {before} + 1"));
    holds(&mut browser, "the graph goes on", &format!("graphs.values().next().value.data[0].at(-1) > {last}"));
    browser.picture("node-light");

    // The user can sort and filter.
    browser.value("document.querySelector('#heads button').click()").unwrap();
    let first = browser.value("document.querySelector('#rows .name').textContent").unwrap();
    assert_eq!(first, "busy", "by name");
    browser.value("get('filter').value = 'crash'; get('filter').dispatchEvent(new Event('input'))").unwrap();
    holds(&mut browser, "the filter holds", "document.querySelectorAll('#rows tr').length === 1");
    browser.value("get('filter').value = ''; get('filter').dispatchEvent(new Event('input'))").unwrap();

    // A pod: limits and requests as lines, traffic, both containers.
    browser
        .value("[...document.querySelectorAll('#rows tr')].find(r => r.textContent.startsWith('busy')).click()")
        .unwrap();
    holds(&mut browser, "the pod's graphs are drawn", "graphs.size === 8 && [...graphs.values()].every(g => g.plot)");
    let pod = drawn(&mut browser);
    assert_eq!(graph(&pod, "main cpu")["bounds"], serde_json::json!([["limit", 0.4], ["request", 0.2]]), "{pod}");
    assert_eq!(graph(&pod, "side memory")["bounds"][0][1], 16 << 20, "{pod}");
    let whole = pod
        .as_array()
        .unwrap()
        .iter()
        .find(|g| !g["key"].as_str().unwrap().contains('/') && g["key"].as_str().unwrap().ends_with(" cpu"));
    assert_eq!(whole.unwrap()["bounds"][0], serde_json::json!(["limit", 0.5]), "{pod}");
    holds(&mut browser, "there are some points", "[...graphs.values()][0].data[0].length >= 4");
    browser.picture("pod-light");
    browser.screen(1440, 900, false, "dark");
    holds(&mut browser, "the colours follow the system", "document.documentElement.dataset.theme === 'dark'");
    browser.picture("pod-dark");

    // A restart is marked in the pod's graph.
    browser.value("location.hash = ''").unwrap();
    holds(&mut browser, "the node is back", "graphs.has('node cpu') && !get('pods').hidden");
    browser.picture("node-dark");
    browser
        .value("[...document.querySelectorAll('#rows tr')].find(r => r.textContent.startsWith('crashes')).click()")
        .unwrap();
    holds(&mut browser, "restarts are marked", "[...graphs.values()].some(g => g.plot && g.marks.length > 0)");
    browser.picture("restarts-dark");

    // On a phone nothing is wider than the screen.
    for (scheme, hash) in [("light", ""), ("dark", "crashes")] {
        browser.screen(390, 844, true, scheme);
        browser.value("location.hash = ''").unwrap();
        holds(
            &mut browser,
            "the node is back",
            "graphs.has('node cpu') && graphs.get('node cpu').plot && !get('pods').hidden",
        );
        if !hash.is_empty() {
            let click = format!(
                "[...document.querySelectorAll('#rows tr')].find(r => r.textContent.startsWith('{hash}')).click()"
            );
            browser.value(&click).unwrap();
            holds(&mut browser, "its graphs are there", "graphs.size > 0 && !get('detail').hidden");
        }
        holds(&mut browser, "nothing sticks out", "document.documentElement.scrollWidth <= 390");
        browser.picture(&format!("phone-{scheme}"));
    }

    assert_eq!(browser.complaints(), Vec::<String>::new().as_slice(), "the console is quiet");
    let foreign: Vec<&String> = browser.requests().iter().filter(|url| !url.starts_with(PAGE)).collect();
    assert!(foreign.iter().all(|url| *url == "about:blank"), "{foreign:?}");
    let uid = kubectl.run(&["get", "pod", "busy", "-o", "jsonpath={.metadata.uid}"]);
    for path in ["", "pods", "windlass/usage", &format!("windlass/history/pods/{uid}"), "stats/summary"] {
        let page = testbed.sh(&format!("curl -fsS {PAGE}{path}"));
        assert!(!page.contains("hunter2"), "{path} tells a value of an environment");
    }
    let head = testbed.sh(&format!("curl -fsSI {PAGE}"));
    assert!(head.contains("default-src 'none'") && head.contains("nosniff"), "{head}");
    assert!(testbed.try_sh(&format!("curl -fsS {PAGE}windlass/history/pods/nobody")).is_err());

    // The open page reports that the node has stopped.
    windlass.kill();
    holds(&mut browser, "the page says that nobody answers", "get('link').textContent === 'no answer'");
}
