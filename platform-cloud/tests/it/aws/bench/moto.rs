//! The EC2 server of moto, in its own process.

use std::{
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tokio::time::Instant;

use super::PATIENCE;

/// moto, stopped when the test ends.
pub(crate) struct Moto {
    child: Child,
    address: SocketAddr,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Moto {
    pub(crate) async fn start() -> Self {
        let program = std::env::var("DROVER_MOTO").unwrap_or_else(|_| "moto_server".to_owned());
        let address = drover_testing::ports::free_address();
        let child = Command::new(&program)
            .args(["-H", "127.0.0.1", "-p", &address.port().to_string()])
            // Without these it accepts any image, type and key pair.
            .env("MOTO_ENABLE_AMI_VALIDATION", "true")
            .env("MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION", "true")
            .env("MOTO_ENABLE_KEYPAIR_VALIDATION", "true")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "{program} cannot be started ({error}): pip install 'moto[ec2,server]', and have moto_server on the \
                     PATH or name it in DROVER_MOTO"
                )
            });
        let moto = Self { child, address };
        let end = Instant::now() + PATIENCE * 2;
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < end, "moto does not listen");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        moto
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}
