//! Credentials that change belong to the same account, or are not used.

use drover_core::Class;
use drover_emulators::ec2::Ec2Settings;
use serde_json::Value;

use crate::aws::bench::{Bench, KEY, credentials, until};

const OTHER_KEY: &str = "AKIAOTHER";
const OTHER_ACCOUNT: &str = "999999999999";

#[tokio::test(flavor = "multi_thread")]
async fn credentials_of_another_account_are_not_used_and_nothing_counts_as_gone() {
    let bench = Bench::emulated(Ec2Settings {
        accounts: [(OTHER_KEY.to_owned(), OTHER_ACCOUNT.to_owned())].into(),
        ..Ec2Settings::default()
    })
    .await;
    let (_, nodes) = bench.make(2, Value::Null).await;
    credentials(bench.directory.path(), OTHER_KEY);
    let error = until("the file is read again", || async {
        bench.ec2().expire_credentials();
        let _ = bench.discover(&bench.cluster).await;
        bench.ec2().renew_credentials();
        match bench.discover(&bench.cluster).await {
            Ok(nodes) => {
                assert_eq!(nodes.len(), 2, "a list of the other account");
                None
            }
            Err(error) => error.message().contains(OTHER_ACCOUNT).then_some(error),
        }
    })
    .await;
    assert_eq!(error.class(), Class::Credentials, "{error:?}");
    let error = bench.deprovision(&nodes[0]).await.unwrap_err();
    assert_eq!(error.class(), Class::Credentials, "{error:?}");
    let request = bench.request(1, Value::Null).await;
    assert!(bench.provision(&request).await.is_err());
    assert_eq!(bench.ec2().machines().len(), 2);

    credentials(bench.directory.path(), KEY);
    let nodes = until("the right ones are taken", || async {
        bench.discover(&bench.cluster).await.ok()
    })
    .await;
    assert_eq!(nodes.len(), 2);
}
