//! Registrations of platforms: what is wrong with one whatever the platform is.

use crate::{error::Violation, name};

/// Maximum length of an endpoint: more than a scheme, the longest host name and a port.
const MAX_ENDPOINT: usize = 512;

/// Validates a registration. An empty `token_secret` is none. Whether the endpoint is a URL is known to who connects to
/// it.
#[must_use]
pub fn check(name: &str, endpoint: &str, token_secret: &str) -> Vec<Violation> {
    let mut wrong = Vec::new();
    let mut refuse = |field: &str, description: String| {
        wrong.push(Violation {
            field: format!("platform.{field}"),
            description,
        });
    };
    if let Err(why) = name::check_name(name) {
        refuse("name", why);
    }
    if !token_secret.is_empty()
        && let Err(why) = name::check_name(token_secret)
    {
        refuse("spec.token_secret", why);
    }
    if endpoint.is_empty() {
        let why = "is empty; expected http://HOST:PORT or https://HOST:PORT";
        refuse("spec.endpoint", why.to_owned());
    } else if endpoint.len() > MAX_ENDPOINT {
        let why = format!("is longer than {MAX_ENDPOINT} bytes");
        refuse("spec.endpoint", why);
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_wrong_with_a_registration_is_said_at_once() {
        let fields = |name: &str, endpoint: &str, token_secret: &str| {
            let wrong = check(name, endpoint, token_secret).into_iter();
            wrong.map(|one| one.field).collect::<Vec<_>>()
        };
        assert_eq!(fields("rack-7", "http://127.0.0.1:7402", ""), [""; 0]);
        assert_eq!(fields("rack-7", "https://a", "token"), [""; 0]);
        let all = [
            "platform.name",
            "platform.spec.token_secret",
            "platform.spec.endpoint",
        ];
        assert_eq!(fields("Bäd", "", "a b"), all);
        let long = format!("http://{}", "x".repeat(MAX_ENDPOINT));
        assert_eq!(fields("a", &long, ""), ["platform.spec.endpoint"]);
    }
}
