//! What an error of kube's client says to a person: kube itself shows an answer of the API with all of its fields.

use std::error::Error;

use kube::core::Status;

/// What an error begins with: the libraries around a connection say only that there was one.
#[must_use]
pub fn innermost<'e>(error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last
}

/// The API's own message; of what is no answer of the API the innermost cause, such as `Connection refused`.
#[must_use]
pub fn message(error: &(dyn Error + 'static)) -> String {
    let last = innermost(error);
    let status = last.downcast_ref::<Status>().or_else(|| last.downcast_ref::<Box<Status>>().map(AsRef::as_ref));
    match status {
        Some(status) if !status.message.is_empty() => status.message.clone(),
        Some(status) if !status.reason.is_empty() => format!("{} ({})", status.reason, status.code),
        Some(status) => format!("the API answered {}", status.code),
        None => last.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_message_and_all_else_its_cause() {
        let status = |text: &str, reason: &str| {
            let status = Status { message: text.to_owned(), reason: reason.to_owned(), code: 403, ..Status::default() };
            message(&kube::Error::Api(Box::new(status)))
        };
        assert_eq!(status("pods is forbidden", "Forbidden"), "pods is forbidden");
        assert_eq!(status("", "Forbidden"), "Forbidden (403)");
        assert_eq!(status("", ""), "the API answered 403");
        let unlisted = kube::runtime::watcher::Error::InitialListFailed(kube::Error::Api(Box::new(Status {
            message: "no".to_owned(),
            ..Status::default()
        })));
        assert_eq!(message(&unlisted), "no");
        let refused = std::io::Error::from_raw_os_error(111);
        assert_eq!(message(&kube::Error::Service(Box::new(refused))), "Connection refused (os error 111)");
    }
}
