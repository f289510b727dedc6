use super::*;

#[test]
fn characters_that_come_in_pieces_are_put_together_and_no_text_is_replaced() {
    let all = "x€y\u{1f980}".as_bytes();
    for at in 0..=all.len() {
        let mut text = Text::new(true);
        let mut chunks = text.chunks(all[..at].to_vec());
        chunks.extend(text.chunks(all[at..].to_vec()));
        chunks.extend(text.rest());
        let joined: Vec<u8> = chunks.into_iter().flat_map(bytes).collect();
        assert_eq!(joined, all);
    }
    let mut text = Text::new(true);
    let mut chunks: Vec<Chunk> = all
        .iter()
        .flat_map(|byte| text.chunks(vec![*byte]))
        .collect();
    chunks.extend(text.rest());
    let joined: Vec<u8> = chunks.into_iter().flat_map(bytes).collect();
    assert_eq!(joined, all, "byte by byte");
    let mut text = Text::new(true);
    let mut chunks = text.chunks(b"a\xffb\xe2\x82".to_vec());
    chunks.extend(text.rest());
    let joined: Vec<u8> = chunks.into_iter().flat_map(bytes).collect();
    assert_eq!(joined, "a\u{fffd}b\u{fffd}".as_bytes());
}

#[test]
fn chunks_are_no_longer_than_they_may_be_and_lose_nothing() {
    let all = "€".repeat(50_000).into_bytes();
    for as_text in [true, false] {
        let chunks = Text::new(as_text).chunks(all.clone());
        let sizes: Vec<usize> = chunks.iter().cloned().map(|one| bytes(one).len()).collect();
        assert!(
            sizes.iter().all(|size| (1..=MAX_CHUNK).contains(size)),
            "{sizes:?}"
        );
        let joined: Vec<u8> = chunks.into_iter().flat_map(bytes).collect();
        assert_eq!(joined, all);
    }
}

#[test]
fn nothing_becomes_no_chunk() {
    for as_text in [true, false] {
        assert_eq!(Text::new(as_text).chunks(Vec::new()), []);
    }
}
