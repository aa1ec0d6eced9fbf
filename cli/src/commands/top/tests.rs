use ratatui::{
    Terminal,
    backend::TestBackend,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
};
use serde_json::{Value, json};

use super::*;

fn used(at_ms: i64, cpu: u64, memory: u64, rx: u64) -> Value {
    json!({"atMs": at_ms, "cpuNano": cpu, "memoryBytes": memory, "rxBytes": rx, "txBytes": 0, "readBytes": 0, "writeBytes": 0})
}

fn pod(name: &str, namespace: &str, state: &str, used: Value) -> Value {
    let none = json!({"cpuMilli": null, "memoryBytes": null});
    let limits = json!({"cpuMilli": 500, "memoryBytes": 1 << 20});
    let container = json!({"name": "main", "state": state, "used": used, "requests": none, "limits": limits, "restarts": 2,
        "started": "2026-02-02T00:00:00Z", "ended": null});
    json!({"namespace": namespace, "name": name, "uid": format!("uid-{name}"), "state": state, "started": "2026-02-02T00:00:00Z",
        "hostNetwork": false, "used": used, "requests": none, "limits": limits, "restarts": 2, "containers": [container]})
}

fn live_at(second: i64, rx: u64) -> NodeUsage {
    let at_ms = second * 1000;
    let node = json!({"name": "here", "cores": 2, "memoryBytes": 4_u64 << 30, "booted": "2026-02-01T00:00:00Z", "system": "Debian",
        "used": used(at_ms, 700_000_000, 1 << 30, rx), "disk": {"usedBytes": 5 << 20, "capacityBytes": 10 << 20}, "images": null});
    let pods = vec![
        pod("api", "work", "Running", used(at_ms, 20_000_000, 9 << 20, rx)),
        pod("db", "work", "CrashLoopBackOff", Value::Null),
        pod("web", "default", "Running", used(at_ms, 300_000_000, 1 << 20, 0)),
    ];
    let at = jiff::Timestamp::from_second(1_769_990_460 + second).unwrap();
    serde_json::from_value(json!({"at": at, "node": node, "pods": pods})).unwrap()
}

fn query(view: View) -> Query {
    Query { view, sort: Sort::Cpu, reverse: false, namespace: None, filter: String::new() }
}

fn names(query: &Query) -> Vec<String> {
    let snapshot = model::snapshot(Some(&live_at(0, 0)), &live_at(2, 8192), query);
    snapshot.items.iter().map(|line| line.pod.clone()).collect()
}

#[test]
fn lines_are_sorted_and_filtered() {
    let all = query(View::Pods);
    assert_eq!(names(&all), ["web", "api", "db"]);
    assert_eq!(names(&Query { sort: Sort::Memory, ..all.clone() }), ["api", "web", "db"]);
    assert_eq!(names(&Query { sort: Sort::Network, ..all.clone() }), ["api", "web", "db"]);
    assert_eq!(names(&Query { sort: Sort::Name, ..all.clone() }), ["web", "api", "db"]);
    assert_eq!(names(&Query { reverse: true, ..all.clone() }), ["db", "api", "web"]);
    assert_eq!(names(&Query { namespace: Some("work".into()), ..all.clone() }), ["api", "db"]);
    assert_eq!(names(&Query { filter: "CRASH".into(), ..all.clone() }), ["db"]);
    assert_eq!(names(&Query { filter: "work/api".into(), ..all }), ["api"]);
    assert!(names(&query(View::Node)).is_empty());
}

#[test]
fn rates_are_between_two_looks() {
    let snapshot = |before: Option<&NodeUsage>| model::snapshot(before, &live_at(2, 8192), &query(View::Pods));
    let api = |snapshot: &model::Snapshot| snapshot.items.iter().find(|l| l.pod == "api").unwrap().rates;
    assert_eq!(api(&snapshot(Some(&live_at(0, 0)))).rx_bytes_per_second, Some(4096));
    assert_eq!(api(&snapshot(None)).rx_bytes_per_second, None);
    assert_eq!(api(&snapshot(Some(&live_at(2, 0)))).rx_bytes_per_second, None, "no time between");
    assert_eq!(api(&snapshot(Some(&live_at(0, 9000)))).rx_bytes_per_second, None, "the counter went back");
}

#[test]
fn text_and_json_for_scripts() {
    let snapshot = model::snapshot(Some(&live_at(0, 0)), &live_at(2, 8192), &query(View::Pods));
    let text = print::text(&snapshot, View::Pods);
    assert!(text.contains("cpu 700m of 2 cores\nmemory 1.0 GiB of 4.0 GiB\ndisk 5.0 MiB of 10.0 MiB"), "{text}");
    assert!(text.contains("NAMESPACE   POD   STATE"), "{text}");
    assert!(
        text.contains("work        api   Running            20m / 500m    9.0 MiB / 1.0 MiB   4.0 KiB/s"),
        "{text}"
    );
    assert!(text.contains("work        db    CrashLoopBackOff   -"), "{text}");
    let containers = model::snapshot(None, &live_at(2, 0), &query(View::Containers));
    assert!(print::text(&containers, View::Containers).contains("CONTAINER"));
    let json = serde_json::to_value(&containers).unwrap();
    assert_eq!(
        (&json["items"][0]["container"], &json["items"][0]["cpuNanoCores"]),
        (&json!("main"), &json!(300_000_000))
    );
    assert_eq!((&json["node"]["rxBytesPerSecond"], &json["items"][0]["ageSeconds"]), (&Value::Null, &json!(62)));
}

fn press(screen: &mut Screen, keys: &str) -> KeyAction {
    let mut wanted = KeyAction::Continue;
    for letter in keys.chars() {
        let code = match letter {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '\u{1b}' => KeyCode::Esc,
            letter => KeyCode::Char(letter),
        };
        wanted = screen.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    wanted
}

fn drawn(screen: &mut Screen) -> String {
    drawn_on(screen, 160)
}

fn drawn_on(screen: &mut Screen, width: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn the_screen_follows_keys_and_looks() {
    let mut screen = Screen::new(query(View::Pods));
    assert!(drawn(&mut screen).contains("asking the node"));
    screen.update(Ok(live_at(0, 0)));
    screen.update(Ok(live_at(2, 8192)));
    let shown = drawn(&mut screen);
    assert!(shown.contains("CPU 700m of 2") && shown.contains("4.0 KiB/s") && shown.contains("web"), "{shown}");
    assert!(shown.find("web").unwrap() < shown.find("api").unwrap(), "{shown}");
    let narrow = drawn_on(&mut screen, 100);
    assert!(
        narrow.contains("20m / 500m") && narrow.contains("CrashLoopBackOff") && !narrow.contains("SENT"),
        "{narrow}"
    );
    press(&mut screen, "m");
    let shown = drawn(&mut screen);
    assert!(shown.find("api").unwrap() < shown.find("web").unwrap(), "{shown}");
    press(&mut screen, "/db\n");
    let shown = drawn(&mut screen);
    assert!(shown.contains("/db") && shown.contains("CrashLoopBackOff") && !shown.contains("web "), "{shown}");
    assert_eq!(press(&mut screen, "\u{1b}"), KeyAction::Continue, "the first Esc clears the filter");
    assert!(drawn(&mut screen).contains("web"));
    press(&mut screen, "\t");
    assert!(drawn(&mut screen).contains("CONTAINER"));
    press(&mut screen, "\t");
    assert!(drawn(&mut screen).contains(" memory ") && drawn(&mut screen).contains("disk 5.0 MiB"));
    screen.update(Err("nobody answers".to_owned()));
    let shown = drawn(&mut screen);
    assert!(shown.contains("nobody answers") && shown.contains("CPU 700m"), "the last look stays: {shown}");
    assert_eq!(press(&mut screen, "/q"), KeyAction::Continue, "letters go into the filter");
    assert_eq!(press(&mut screen, "\u{1b}q"), KeyAction::Quit);
    assert_eq!(screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), KeyAction::Quit);
}

#[test]
fn a_row_can_be_chosen() {
    let mut screen = Screen::new(query(View::Pods));
    screen.update(Ok(live_at(0, 0)));
    for code in
        [KeyCode::Down, KeyCode::Down, KeyCode::Up, KeyCode::PageDown, KeyCode::Home, KeyCode::End, KeyCode::PageUp]
    {
        assert_eq!(screen.key(KeyEvent::new(code, KeyModifiers::NONE)), KeyAction::Continue);
        assert!(drawn(&mut screen).contains("api"));
    }
}
