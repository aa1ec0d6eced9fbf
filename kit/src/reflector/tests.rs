//! Against a script of what a server answers.

use std::{convert::Infallible, sync::Arc};

use futures::TryStreamExt as _;
use http::{Request, Response};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use parking_lot::Mutex;

use super::*;

/// What the server does with the next request.
enum Answer {
    /// A page: its revision, names and revisions of its objects, and the token of the next page.
    List(&'static str, &'static [(&'static str, &'static str)], Option<&'static str>),
    /// Lines of a watch, which ends after them.
    Watch(Vec<String>),
    /// Lines of a watch, which then stays open without further events.
    Silence(Vec<String>),
    /// The watch ends after this time.
    Ends(Duration),
    Code(u16),
    /// The server is behind the version that is asked for.
    TooLargeVersion,
    /// Lines of a watch, or the beginning of a list, and then the connection breaks within a line.
    BreaksOff(Vec<String>, &'static str),
    /// The same, and it ends there as if it were complete.
    EndsWithin(Vec<String>, &'static str),
}

type Requests = Arc<Mutex<Vec<String>>>;

/// A client of a server that answers by the script, and its requests: `list` or `watch`, with the relevant query.
fn scripted(script: Vec<Answer>) -> (Api<ConfigMap>, Requests) {
    let requests: Requests = Arc::default();
    let (seen, script) = (Arc::clone(&requests), Arc::new(Mutex::new(VecDeque::from(script))));
    let service = tower::service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let of = |name: &str| {
            let found = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            found.map(|value| format!(" {name}={value}")).unwrap_or_default()
        };
        let what = if query.contains("watch=true") { "watch" } else { "list" };
        let line =
            format!("{what}{}{}{}{}", of("sendInitialEvents"), of("resourceVersion"), of("limit"), of("continue"));
        seen.lock().push(line);
        let next = script.lock().pop_front();
        async move { answer(next.expect("the script has an answer")) }
    });
    (Api::namespaced(kube::Client::new(service, "n"), "n"), requests)
}

type Pieces = BoxStream<'static, io::Result<Frame<Bytes>>>;

fn answer(next: Answer) -> Result<Response<StreamBody<Pieces>>, Infallible> {
    let of =
        |code: u16, body: Pieces| Ok(Response::builder().status(code).body(StreamBody::new(body)).expect("a response"));
    let pieces = |texts: Vec<String>| stream::iter(texts.into_iter().map(|text| Ok(Frame::data(Bytes::from(text)))));
    let streamed = |lines: Vec<String>, end: Pieces| {
        pieces(lines.into_iter().map(|line| line + "\n").collect()).chain(end).boxed()
    };
    match next {
        Answer::List(version, objects, more) => {
            let items: Vec<_> = objects.iter().map(|(name, version)| object(name, version)).collect();
            let list = serde_json::json!({
                "apiVersion": "v1", "kind": "ConfigMapList",
                "metadata": {"resourceVersion": version, "continue": more.unwrap_or_default()}, "items": items,
            });
            of(200, pieces(vec![list.to_string()]).boxed())
        }
        Answer::Watch(lines) => of(200, streamed(lines, stream::empty().boxed())),
        Answer::Silence(lines) => of(200, streamed(lines, stream::pending().boxed())),
        Answer::Ends(after) => {
            let end = stream::once(tokio::time::sleep(after)).filter_map(async |()| None);
            of(200, streamed(vec![], end.boxed()))
        }
        Answer::Code(code) => {
            let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no"});
            of(code, pieces(vec![status.to_string()]).boxed())
        }
        Answer::TooLargeVersion => {
            let details = serde_json::json!({"retryAfterSeconds": 1,
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]});
            let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 504,
                "reason": "Timeout", "message": "Timeout: Too large resource version: 10, current: 9", "details": details});
            of(504, pieces(vec![status.to_string()]).boxed())
        }
        Answer::BreaksOff(lines, part) => {
            let end = stream::iter([Err(io::Error::from(io::ErrorKind::ConnectionReset))]);
            of(200, streamed(lines, pieces(vec![part.to_owned()]).chain(end).boxed()))
        }
        Answer::EndsWithin(lines, part) => of(200, streamed(lines, pieces(vec![part.to_owned()]).boxed())),
    }
}

fn object(name: &str, version: &str) -> serde_json::Value {
    serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "n", "resourceVersion": version}})
}

fn line(kind: &str, name: &str, version: &str) -> String {
    serde_json::json!({"type": kind, "object": object(name, version)}).to_string()
}

/// The bookmark that ends a streaming list.
fn end_of_list(version: &str) -> String {
    let mut mark = object("", version);
    mark["metadata"]["annotations"] = serde_json::json!({"k8s.io/initial-events-end": "true"});
    serde_json::json!({"type": "BOOKMARK", "object": mark}).to_string()
}

/// The first `number` events and errors of the stream, each as a word.
async fn outcomes(api: Api<ConfigMap>, extent: Extent, number: usize) -> Vec<String> {
    outcomes_of(reflect(api, Config::default(), extent), number).await
}

async fn outcomes_of(events: impl Stream<Item = Result<Event<ConfigMap>, Error>>, number: usize) -> Vec<String> {
    let mut events = std::pin::pin!(events);
    let mut outcomes = Vec::new();
    while outcomes.len() < number {
        let name = |map: &ConfigMap| map.metadata.name.clone().unwrap_or_default();
        outcomes.push(match events.try_next().await {
            Ok(Some(Event::Init)) => "init".to_owned(),
            Ok(Some(Event::InitApply(map))) => format!("listed {}", name(&map)),
            Ok(Some(Event::InitDone)) => "all".to_owned(),
            Ok(Some(Event::Apply(map))) => format!("is {}", name(&map)),
            Ok(Some(Event::Delete(map))) => format!("gone {}", name(&map)),
            Ok(None) => panic!("the stream ended"),
            Err(_) => "error".to_owned(),
        });
    }
    outcomes
}

fn lines(requests: &Requests) -> Vec<String> {
    requests.lock().clone()
}

const ONE: &[(&str, &str)] = &[("a", "5")];

#[tokio::test(start_paused = true)]
async fn pages_are_one_list_and_a_watch_begins_where_it_ends() {
    let (api, requests) = scripted(vec![
        Answer::List("10", ONE, Some("next")),
        Answer::List("10", &[("b", "6")], None),
        Answer::Silence(vec![line("ADDED", "c", "11"), line("BOOKMARK", "", "20"), line("DELETED", "a", "21")]),
    ]);
    assert_eq!(outcomes(api, Extent::Many, 6).await, ["init", "listed a", "listed b", "all", "is c", "gone a"]);
    assert_eq!(lines(&requests), ["list limit=500", "list limit=500 continue=next", "watch resourceVersion=10"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_as_agreed_goes_on_where_it_was() {
    for extent in [Extent::Few, Extent::Many] {
        let (api, requests) = scripted(vec![
            Answer::List("10", &[], None),
            Answer::Ends(Duration::from_secs(290)),
            Answer::Silence(vec![line("ADDED", "b", "11")]),
        ]);
        assert_eq!(outcomes(api, extent, 3).await, ["init", "all", "is b"]);
        assert_eq!(lines(&requests)[1..], ["watch resourceVersion=10", "watch resourceVersion=10"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_forgets_the_end_of_a_watch_is_asked_again() {
    let (api, requests) = scripted(vec![
        Answer::List("10", &[], None),
        Answer::Silence(vec![]),
        Answer::Silence(vec![line("ADDED", "b", "11")]),
    ]);
    assert_eq!(outcomes(api, Extent::Many, 3).await, ["init", "all", "is b"]);
    assert_eq!(lines(&requests).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn few_are_listed_anew_after_a_watch_that_broke_off() {
    for broken in [Answer::Watch(vec![]), Answer::Code(500)] {
        let fails = matches!(broken, Answer::Code(_));
        let (api, requests) = scripted(vec![
            Answer::List("10", ONE, None),
            broken,
            Answer::List("4", &[], None),
            Answer::Silence(vec![line("ADDED", "b", "5")]),
        ]);
        let mut all = outcomes(api, Extent::Few, if fails { 7 } else { 6 }).await;
        all.retain(|word| word != "error");
        assert_eq!(all, ["init", "listed a", "all", "init", "all", "is b"]);
        assert_eq!(lines(&requests)[1..], ["watch resourceVersion=10", "list limit=500", "watch resourceVersion=4"]);
    }
}

#[tokio::test(start_paused = true)]
async fn many_are_listed_anew_only_where_the_server_is_behind() {
    let mark = line("BOOKMARK", "", "20");
    // What the server says it has, and whether that is taken for the history that is known.
    for (theirs, known) in [("21", true), ("100", true), ("20", true), ("3", false), ("x", false)] {
        let (api, requests) = scripted(vec![
            Answer::List("10", ONE, None),
            Answer::Watch(vec![mark.clone()]),
            Answer::List(theirs, ONE, None),
            if known { Answer::Silence(vec![line("ADDED", "b", "22")]) } else { Answer::List("7", &[], None) },
        ]);
        let next = if known { "is b" } else { "init" };
        assert_eq!(outcomes(api, Extent::Many, 4).await, ["init", "listed a", "all", next], "{theirs}");
        let last = if known { "watch resourceVersion=20" } else { "list limit=500" };
        assert_eq!(lines(&requests)[2..], ["list limit=1", last], "{theirs}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_asked_is_asked_again() {
    let (api, requests) = scripted(vec![
        Answer::Code(503),
        Answer::List("10", &[], None),
        Answer::Code(500),
        Answer::Code(503),
        Answer::List("11", &[], None),
        Answer::Silence(vec![line("ADDED", "b", "12")]),
    ]);
    assert_eq!(outcomes(api, Extent::Many, 6).await, ["error", "init", "all", "error", "error", "is b"]);
    let tail = ["watch resourceVersion=10", "list limit=1", "list limit=1", "watch resourceVersion=10"];
    assert_eq!(lines(&requests)[2..], tail);
}

#[tokio::test(start_paused = true)]
async fn a_revision_that_is_gone_is_listed_anew_without_a_question() {
    let expired = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"message":"too old"}}"#;
    for gone in [Answer::Code(410), Answer::Watch(vec![expired.to_owned()])] {
        let (api, requests) = scripted(vec![Answer::List("10", ONE, None), gone, Answer::List("30", &[], None)]);
        assert_eq!(outcomes(api, Extent::Many, 5).await, ["init", "listed a", "all", "error", "init"]);
        assert_eq!(lines(&requests)[2..], ["list limit=500"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_hides_no_other() {
    let odd = r#"{"type":"ADDED","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":5}}}"#;
    let (api, requests) =
        scripted(vec![Answer::List("10", &[], None), Answer::Silence(vec![odd.to_owned(), line("ADDED", "b", "12")])]);
    assert_eq!(outcomes(api, Extent::Few, 4).await, ["init", "all", "error", "is b"]);
    assert_eq!(lines(&requests).len(), 2);
}

/// Servers write one form; any other is read too; a truncated line is an error.
#[test]
fn a_line_is_read_in_whatever_form() {
    let object = r#"{"metadata":{"name":"a"},"data":{"x":"}"}}"#;
    let as_written = format!(r#"{{"type":"ADDED","object":{object}}}"#);
    for line in [
        as_written.clone(),
        format!(r#" {{ "type": "ADDED", "object": {object} }} "#),
        format!(r#"{{"object":{object},"type":"ADDED"}}"#),
        format!(r#"{{"type":"ADDED","object":{object},"more":{{}}}}"#),
    ] {
        let Ok(WatchEvent::Added(map)) = event_of::<ConfigMap>(&line) else { panic!("{line}") };
        assert_eq!(map.metadata.name.as_deref(), Some("a"), "{line}");
    }
    for end in 0..as_written.len() {
        let cut = event_of::<ConfigMap>(&as_written[..end]);
        assert!(cut.is_err_and(|error| error.is_eof()), "{}", &as_written[..end]);
    }
    let twice = format!(r#"{{"type":"ADDED","object":{object},"object":{object}}}"#);
    assert!(event_of::<ConfigMap>(&twice).is_err());
}

fn streamed(api: Api<ConfigMap>) -> impl Stream<Item = Result<Event<ConfigMap>, Error>> {
    reflect(api, Config::default().streaming_lists(), Extent::Few)
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_and_its_watch_are_one_request() {
    let (api, requests) = scripted(vec![
        Answer::Watch(vec![
            line("ADDED", "a", "3"),
            line("BOOKMARK", "", "4"),
            line("ADDED", "b", "4"),
            end_of_list("10"),
            line("DELETED", "a", "11"),
        ]),
        // It broke off, so everything is listed again.
        Answer::Silence(vec![line("ADDED", "b", "4"), end_of_list("12"), line("MODIFIED", "b", "13")]),
    ]);
    let expected = ["init", "listed a", "listed b", "all", "gone a", "init", "listed b", "all", "is b"];
    assert_eq!(outcomes_of(streamed(api), expected.len()).await, expected);
    assert_eq!(lines(&requests), ["watch sendInitialEvents=true resourceVersion="; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_streaming_list_that_breaks_off_is_begun_again() {
    let (api, requests) = scripted(vec![
        Answer::Code(403),
        Answer::Watch(vec![line("ADDED", "a", "3")]),
        Answer::Watch(vec![line("ADDED", "a", "3"), "{\"type\":\"ADDED\",\"object\":{\"data\":3}}".to_owned()]),
        Answer::Silence(vec![end_of_list("10"), line("ADDED", "b", "11")]),
    ]);
    let expected = ["error", "init", "listed a", "error", "init", "listed a", "error", "error", "init", "all", "is b"];
    assert_eq!(outcomes_of(streamed(api), expected.len()).await, expected);
    assert_eq!(lines(&requests).len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_streaming_lists_is_asked_for_a_list() {
    for code in [400, 422] {
        let (api, requests) = scripted(vec![
            Answer::Code(code),
            Answer::List("10", ONE, None),
            Answer::Watch(vec![]),
            Answer::List("12", &[], None),
            Answer::Silence(vec![line("ADDED", "b", "13")]),
        ]);
        let expected = ["init", "listed a", "all", "init", "all", "is b"];
        assert_eq!(outcomes_of(streamed(api), expected.len()).await, expected);
        assert_eq!(lines(&requests)[1..4], ["list limit=500", "watch resourceVersion=10", "list limit=500"], "{code}");
    }
}

// As client-go's reflector_test.go has them: what becomes of each answer.

/// client-go's `TestNoRelistOnTooManyRequests` and `TestBackoffOnTooManyRequests`.
#[tokio::test(start_paused = true)]
async fn a_server_with_too_much_to_do_is_asked_for_no_list() {
    for extent in [Extent::Few, Extent::Many] {
        let (api, requests) = scripted(vec![
            Answer::List("10", ONE, None),
            Answer::Code(429),
            Answer::Code(429),
            Answer::Silence(vec![line("ADDED", "b", "11")]),
        ]);
        assert_eq!(outcomes(api, extent, 6).await, ["init", "listed a", "all", "error", "error", "is b"]);
        assert_eq!(lines(&requests)[1..], ["watch resourceVersion=10"; 3]);
    }
}

/// client-go's `TestRetryInternalError`.
#[tokio::test(start_paused = true)]
async fn a_server_that_fails_goes_on_where_it_was() {
    let failed = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"reason":"InternalError"}}"#;
    for failure in [Answer::Code(500), Answer::Watch(vec![failed.to_owned()])] {
        let (api, requests) = scripted(vec![
            Answer::List("10", ONE, None),
            failure,
            Answer::List("11", ONE, None),
            Answer::Silence(vec![line("ADDED", "b", "11")]),
        ]);
        assert_eq!(outcomes(api, Extent::Many, 5).await, ["init", "listed a", "all", "error", "is b"]);
        assert_eq!(lines(&requests)[1..], ["watch resourceVersion=10", "list limit=1", "watch resourceVersion=10"]);
    }
}

/// client-go's `TestReflectorFullListIfExpired`: the second page comes too late.
#[tokio::test(start_paused = true)]
async fn a_list_that_takes_too_long_is_begun_again_without_pages() {
    let (api, requests) = scripted(vec![
        Answer::List("10", ONE, Some("next")),
        Answer::Code(410),
        // That is tried until it succeeds; the next list has pages again.
        Answer::Code(503),
        Answer::List("12", &[("a", "5"), ("b", "11")], None),
        Answer::Code(410),
        Answer::List("13", ONE, None),
    ]);
    let expected =
        ["init", "listed a", "error", "error", "init", "listed a", "listed b", "all", "error", "init", "listed a"];
    assert_eq!(outcomes(api, Extent::Many, expected.len()).await, expected);
    let asked = [
        "list limit=500",
        "list limit=500 continue=next",
        "list",
        "list",
        "watch resourceVersion=12",
        "list limit=500",
    ];
    assert_eq!(lines(&requests), asked);
}

/// client-go's `TestReflectorFullListIfTooLarge`: a second server lags behind the first.
#[tokio::test(start_paused = true)]
async fn a_server_that_lags_behind_is_asked_until_it_has_come_so_far() {
    let (api, requests) = scripted(vec![
        Answer::List("10", ONE, None),
        Answer::TooLargeVersion,
        Answer::List("12", ONE, None),
        Answer::TooLargeVersion,
        Answer::List("12", ONE, None),
        Answer::Silence(vec![line("ADDED", "b", "11")]),
    ]);
    assert_eq!(outcomes(api, Extent::Many, 6).await, ["init", "listed a", "all", "error", "error", "is b"]);
    let again = ["watch resourceVersion=10", "list limit=1"];
    assert_eq!(lines(&requests)[1..], [again, again, again].concat()[..5]);
}

/// client-go's `TestReflectorExpiredExactResourceVersion` and `TestReflectorFullListIfTooLarge`: what is known is not taken
/// back by a server that lags behind.
#[tokio::test(start_paused = true)]
async fn a_list_is_not_older_than_what_is_known() {
    for refusal in [Answer::TooLargeVersion, Answer::Code(410)] {
        let (api, requests) = scripted(vec![
            Answer::List("10", ONE, None),
            Answer::Watch(vec![line("ADDED", "b", "11")]),
            refusal,
            Answer::List("12", ONE, None),
            Answer::Code(410),
            Answer::List("13", ONE, None),
            Answer::Silence(vec![]),
        ]);
        let events = reflect(api, Config::default().any_semantic(), Extent::Few);
        let again = ["error", "init", "listed a", "all"];
        let expected = [&["init", "listed a", "all", "is b"][..], &again, &again].concat();
        assert_eq!(outcomes_of(events, expected.len()).await, expected);
        let asked = [
            "list resourceVersion=0",
            "watch resourceVersion=10",
            "list resourceVersion=11",
            "list limit=500",
            "watch resourceVersion=12",
            "list resourceVersion=12",
        ];
        assert_eq!(lines(&requests), asked);
    }
}

/// client-go's `TestReflectorReplacesStoreOnUnsafeDelete`.
#[tokio::test(start_paused = true)]
async fn unreadable_deleted_objects_are_missing_in_the_next_list() {
    let unreadable = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":500,"reason":"StorageReadError","message":"corrupt object has been deleted"}}"#;
    let (api, requests) = scripted(vec![
        Answer::List("3", ONE, None),
        Answer::Watch(vec![line("ADDED", "b", "4"), unreadable.to_owned()]),
        Answer::List("5", ONE, None),
        Answer::Silence(vec![]),
    ]);
    let expected = ["init", "listed a", "all", "is b", "error", "init", "listed a", "all"];
    assert_eq!(outcomes(api, Extent::Many, expected.len()).await, expected);
    assert_eq!(lines(&requests), ["list limit=500", "watch resourceVersion=3", "list limit=500"]);
}

const PART: &str = r#"{"type":"MODIFIED","object":{"apiVersion":"v1","kind":"ConfigMap","metadata":{"na"#;

#[tokio::test(start_paused = true)]
async fn an_event_that_is_cut_is_none_and_comes_again() {
    for breaks in [true, false] {
        let cut = |lines| if breaks { Answer::BreaksOff(lines, PART) } else { Answer::EndsWithin(lines, PART) };
        let (api, requests) = scripted(vec![
            Answer::List("10", ONE, None),
            cut(vec![line("ADDED", "b", "11")]),
            Answer::List("12", ONE, None),
            Answer::Silence(vec![line("MODIFIED", "b", "12")]),
        ]);
        let mut all = outcomes(api, Extent::Many, if breaks { 6 } else { 5 }).await;
        all.retain(|word| word != "error");
        assert_eq!(all, ["init", "listed a", "all", "is b", "is b"]);
        assert_eq!(lines(&requests)[1..], ["watch resourceVersion=10", "list limit=1", "watch resourceVersion=11"]);

        // Within a streamed list a truncated line is an error, too, since objects missing from it count as deleted.
        let (api, requests) = scripted(vec![
            cut(vec![line("ADDED", "a", "3")]),
            Answer::Silence(vec![line("ADDED", "a", "3"), end_of_list("10")]),
        ]);
        let expected = ["init", "listed a", "error", "init", "listed a", "all"];
        assert_eq!(outcomes_of(streamed(api), expected.len()).await, expected);
        assert_eq!(lines(&requests).len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_cut_is_none() {
    const PART: &str =
        r#"{"apiVersion":"v1","kind":"ConfigMapList","metadata":{"resourceVersion":"10"},"items":[{"metadata""#;
    for cut in [Answer::BreaksOff(vec![], PART), Answer::EndsWithin(vec![], PART)] {
        let (api, requests) = scripted(vec![cut, Answer::List("10", ONE, None), Answer::Silence(vec![])]);
        assert_eq!(outcomes(api, Extent::Many, 4).await, ["error", "init", "listed a", "all"]);
        assert_eq!(lines(&requests), ["list limit=500"; 2]);
    }
}
