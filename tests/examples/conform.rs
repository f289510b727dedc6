//! The conformance suite over the network: `cargo run -p drover-tests --example conform -- http://127.0.0.1:7402`.
//! Exits with 0 if the platform conforms. Creates nodes there, and addons where they are offered, and removes them.
#![allow(missing_docs)]

use anyhow::{Context, Result, bail};
use drover_client::Target;
use drover_testing::platform::{Subject, conformance};

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(address), store, version) = (arguments.next(), arguments.next(), arguments.next())
    else {
        bail!("usage: conform http://HOST:PORT [STORE [VERSION]]");
    };
    let target: Target = address
        .parse()
        .with_context(|| format!("{address} is not an address"))?;
    let mut subject = Subject::new(move || drover_client::connect(&target));
    subject.store = store.unwrap_or_default();
    subject.version = version.unwrap_or_default();
    conformance(&subject).await;
    println!("{address} conforms");
    Ok(())
}
