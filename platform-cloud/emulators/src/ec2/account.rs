//! Authentication of the caller, and `GetCallerIdentity` of STS.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use uuid::Uuid;

use crate::ec2::params::{Outcome, Wrong, wrong};
use crate::ec2::xml::Xml;
use crate::ec2::{ACCOUNT, World, names};
use crate::server::{Answer, Call};

pub(crate) const STS_VERSION: &str = "2011-06-15";

/// Maximum difference in seconds between the date of a request and the API's clock.
const SKEW: i64 = 15 * 60;

impl World {
    /// Returns the access key id of the caller if its credentials are accepted.
    pub(crate) fn check_credentials(
        &self,
        operation: &str,
        call: &Call,
        expired: bool,
        sts: bool,
    ) -> Outcome<String> {
        let header = call.header("authorization").unwrap_or_default();
        let scope = header
            .split_once("Credential=")
            .map_or("", |(_, rest)| rest);
        let scope = scope.split([',', ' ']).next().unwrap_or_default();
        let parts: Vec<&str> = scope.split('/').collect();
        let [key, _, region, _, _] = parts.as_slice() else {
            let message = "Request is missing Authentication Token";
            return Err(Wrong {
                status: 403,
                ..wrong("MissingAuthenticationToken", message)
            });
        };
        let settings = &self.settings;
        if !settings.access_keys.is_empty()
            && !settings.access_keys.iter().any(|known| known == key)
        {
            return Err(if sts {
                let message = "The security token included in the request is invalid.";
                Wrong {
                    status: 403,
                    ..wrong("InvalidClientTokenId", message)
                }
            } else {
                not_valid()
            });
        }
        if *region != settings.region {
            let message = "Credential should be scoped to a valid region. ";
            let (status, code) = if sts {
                (403, "SignatureDoesNotMatch")
            } else {
                (401, "AuthFailure")
            };
            return Err(Wrong {
                status,
                ..wrong(code, message)
            });
        }
        if expired {
            return Err(if sts {
                let message = "The security token included in the request is expired";
                Wrong {
                    status: 403,
                    ..wrong("ExpiredToken", message)
                }
            } else {
                wrong("RequestExpired", "Request has expired.")
            });
        }
        self.check_date(call)?;
        if names(&settings.denied, operation) {
            let message = format!(
                "You are not authorized to perform this operation. User: arn:aws:iam::{ACCOUNT}:user/emulated is not \
                 authorized to perform: ec2:{operation} because no identity-based policy allows the ec2:{operation} action"
            );
            return Err(Wrong {
                status: 403,
                ..wrong("UnauthorizedOperation", message)
            });
        }
        Ok((*key).to_owned())
    }

    fn check_date(&self, call: &Call) -> Outcome<()> {
        let Some(date) = call.header("x-amz-date").and_then(parse_date) else {
            return Ok(());
        };
        let behind = self.clock.real().as_second() - date.as_second();
        if behind > SKEW {
            return Err(wrong("RequestExpired", "Request has expired."));
        }
        if behind < -SKEW {
            Err(not_valid())
        } else {
            Ok(())
        }
    }

    pub(crate) fn sts(&self, operation: &str, access_key: &str) -> Outcome<Xml> {
        if operation != "GetCallerIdentity" {
            let message = format!("Could not find operation {operation} for version {STS_VERSION}");
            return Err(wrong("InvalidAction", message));
        }
        let mut xml = Xml::new();
        let account = self.settings.accounts.get(access_key);
        let account = account.map_or(ACCOUNT, String::as_str);
        xml.value("Arn", format_args!("arn:aws:iam::{account}:user/emulated"));
        xml.value("UserId", format_args!("AIDA{access_key}"));
        xml.text("Account", account);
        Ok(xml)
    }
}

fn not_valid() -> Wrong {
    let message = "AWS was not able to validate the provided access credentials";
    Wrong {
        status: 401,
        ..wrong("AuthFailure", message)
    }
}

fn parse_date(text: &str) -> Option<Timestamp> {
    let date = DateTime::strptime("%Y%m%dT%H%M%SZ", text).ok()?;
    Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

pub(crate) fn answer(operation: &str, inner: Xml) -> Answer {
    let id = Uuid::new_v4().to_string();
    let mut xml = Xml::new();
    xml.raw(&format!(
        "<{operation}Response xmlns=\"https://sts.amazonaws.com/doc/{STS_VERSION}/\">"
    ));
    let inner = inner.into_string();
    xml.nest(&format!("{operation}Result"), |xml| xml.raw(&inner));
    xml.nest("ResponseMetadata", |xml| xml.text("RequestId", &id));
    xml.close(&format!("{operation}Response"));
    Answer::text(200, "text/xml", xml.into_string()).header("x-amzn-requestid", id)
}

pub(crate) fn failure(wrong: &Wrong) -> Answer {
    let id = Uuid::new_v4().to_string();
    let mut xml = Xml::new();
    xml.raw(&format!(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/{STS_VERSION}/\">"
    ));
    xml.nest("Error", |xml| {
        xml.text(
            "Type",
            if wrong.status < 500 {
                "Sender"
            } else {
                "Receiver"
            },
        );
        xml.text("Code", &wrong.code);
        xml.text("Message", &wrong.message);
    });
    xml.text("RequestId", &id);
    xml.close("ErrorResponse");
    Answer::text(wrong.status, "text/xml", xml.into_string()).header("x-amzn-requestid", id)
}
