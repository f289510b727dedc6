use super::*;

fn throttled() -> Error {
    Error::new(Reason::RateLimited, "slow down")
}

#[tokio::test(start_paused = true)]
async fn a_burst_goes_at_once_and_then_the_rate_holds() {
    let gate = Gate::new(10.0, 100);
    let start = Instant::now();
    for _ in 0..120 {
        gate.call(|| async { Ok(()) }).await.unwrap();
    }
    let took = start.elapsed().as_secs_f64();
    assert!(
        (9.5..=10.5).contains(&took),
        "120 calls at 10/s after a burst of 20 took {took} s"
    );
}

#[tokio::test(start_paused = true)]
async fn a_change_waits_behind_no_reads() {
    let gate = Gate::new(2.0, 100);
    let read = Action::of(true);
    let reads: Vec<_> = (0..16)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move {
                loop {
                    let _ = gate.call_as(read, || async { Ok(()) }).await;
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let start = Instant::now();
    for _ in 0..20 {
        gate.call(|| async { Ok(()) }).await.unwrap();
    }
    let took = start.elapsed().as_secs_f64();
    assert!(
        (18.0..=22.0).contains(&took),
        "half of the rate, not {took} s"
    );
    reads.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn what_is_throttled_while_others_wait_slows_them_down_too() {
    let gate = Gate::new(20.0, 100);
    let made = Arc::new(AtomicU32::new(0));
    let changes: Vec<_> = (0..200)
        .map(|_| {
            let (gate, made) = (gate.clone(), Arc::clone(&made));
            tokio::spawn(async move {
                gate.call(|| async {
                    if made.fetch_add(1, Ordering::Relaxed) == 30 {
                        return Err(throttled().with_retry_after(Duration::from_secs(20)));
                    }
                    Ok(())
                })
                .await
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(15)).await;
    let during = made.load(Ordering::Relaxed);
    assert!(during <= 35, "{during} calls in a pause");
    changes.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn a_read_waits_behind_no_changes_and_the_rate_holds() {
    let gate = Gate::new(20.0, 100);
    let start = Instant::now();
    let changes: Vec<_> = (0..600)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move { gate.call(|| async { Ok(()) }).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let read = Action {
        name: "",
        lane: Lane::Read,
    };
    for _ in 0..40 {
        let asked = Instant::now();
        gate.call_as(read, || async { Ok(()) }).await.unwrap();
        assert!(asked.elapsed() < Duration::from_millis(200));
    }
    for change in changes {
        change.await.unwrap().unwrap();
    }
    let took = start.elapsed().as_secs_f64();
    assert!((30.5..=31.5).contains(&took), "640 calls took {took} s");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_would_come_too_late_is_told_at_once_and_takes_no_turn() {
    let gate = Gate::new(1.0, 100);
    let changes: Vec<_> = (0..200)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move { gate.call(|| async { Ok(()) }).await })
        })
        .collect();
    let start = Instant::now();
    tokio::time::sleep(Duration::from_millis(10)).await;
    let late = gate.call(|| async { Ok(()) }).await.unwrap_err();
    assert_eq!(late.reason(), Reason::RateLimited);
    assert!(start.elapsed() < Duration::from_secs(1));
    let mut made = 0;
    for change in changes {
        made += u32::from(change.await.unwrap().is_ok());
    }
    assert!(
        (60..=70).contains(&made),
        "{made} in 45 s after a burst of 20"
    );
    let start = Instant::now();
    gate.call(|| async { Ok(()) }).await.unwrap();
    assert!(start.elapsed() <= Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn throttling_of_one_call_slows_down_all_and_is_forgotten_again() {
    let gate = Gate::new(20.0, 100);
    let failures = AtomicU32::new(3);
    gate.call(|| async {
        let left = failures.load(Ordering::Relaxed);
        if left == 0 {
            return Ok(());
        }
        failures.store(left - 1, Ordering::Relaxed);
        Err(throttled())
    })
    .await
    .unwrap();
    let slow = gate.rate();
    assert!(slow < 5.0, "{slow}");
    for _ in 0..60 {
        gate.call(|| async { Ok(()) }).await.unwrap();
    }
    assert!((gate.rate() - 20.0).abs() < 1e-9, "{}", gate.rate());
}

#[tokio::test(start_paused = true)]
async fn throttling_of_one_action_slows_down_no_other() {
    let gate = Gate::new(20.0, 2);
    let launch = Action {
        name: "RunInstances",
        lane: Lane::Change,
    };
    let others = [
        ("DescribeInstances", Lane::Read),
        ("TerminateInstances", Lane::Change),
    ];
    let launches: Vec<_> = (0..8)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move {
                gate.call_as(launch, || async { Err::<(), _>(throttled()) })
                    .await
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let start = Instant::now();
    for (name, lane) in others.repeat(5) {
        let other = Action { name, lane };
        gate.call_as(other, || async { Ok(()) }).await.unwrap();
    }
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    for launch in launches {
        let error = launch.await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Reason::RateLimited);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_hang_delay_neither_reads_nor_others_for_ever() {
    let gate = Gate::new(20.0, 1);
    let hangs = gate.clone();
    let hanging = tokio::spawn(async move {
        hangs
            .call(|| async {
                tokio::time::sleep(Duration::from_secs(300)).await;
                Ok(())
            })
            .await
    });
    tokio::task::yield_now().await;
    let read = Action {
        name: "",
        lane: Lane::Read,
    };
    let start = Instant::now();
    gate.call_as(read, || async { Ok(()) }).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1));
    let error = gate.call(|| async { Ok(()) }).await.unwrap_err();
    assert_eq!(error.reason(), Reason::RateLimited);
    assert!(start.elapsed() <= MAX_WAIT + Duration::from_secs(1));
    hanging.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_api_that_only_throttles_is_given_up_in_time() {
    let gate = Gate::new(20.0, 100);
    let start = Instant::now();
    let outcome: Result<()> = gate.call(|| async { Err(throttled()) }).await;
    assert_eq!(outcome.unwrap_err().reason(), Reason::RateLimited);
    assert!(start.elapsed() <= MAX_WAIT + MAX_PAUSE);
}

#[tokio::test(start_paused = true)]
async fn other_errors_are_not_tried_again() {
    let gate = Gate::new(20.0, 100);
    let calls = AtomicU32::new(0);
    let outcome: Result<()> = gate
        .call(|| async {
            calls.fetch_add(1, Ordering::Relaxed);
            Err(Error::unavailable("gone"))
        })
        .await;
    assert!(outcome.is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_create_that_waited_for_too_long_is_not_started() {
    let gate = Gate::new(20.0, 100);
    gate.left(0, Duration::from_secs(30));
    let lifetime = Lifetime::new();
    let _caller = lifetime.join(Some(Instant::now() + Duration::from_secs(5)));
    let create = gate.create(|| async { Ok(()) });
    let error = within(Arc::clone(&lifetime), create).await.unwrap_err();
    assert!(not_started(&error));
    let read = gate.call(|| async { Ok(()) });
    within(lifetime, read).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_left_until_the_reset_is_spread_over_that_time() {
    let gate = Gate::new(20.0, 100);
    gate.left(60, Duration::from_secs(60));
    for _ in 0..20 {
        gate.call(|| async { Ok(()) }).await.unwrap();
    }
    assert!((gate.rate() - 1.0).abs() < 1e-9, "{}", gate.rate());
    gate.left(0, Duration::from_secs(30));
    let start = Instant::now();
    gate.call(|| async { Ok(()) }).await.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(30));
}
