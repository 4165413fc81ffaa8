use super::*;

fn read(json: &str) -> Result<(Page, Vec<Block>), String> {
    let mut blocks = Vec::new();
    let mut each = |b| {
        blocks.push(b);
        Ok(())
    };
    let page = read_page(json.as_bytes(), &mut each).map_err(|e| e.to_string())?;
    Ok((page, blocks))
}

#[test]
fn spellings_and_number_forms_are_one() {
    let plain = r#"{"changeBlockList":[{"offset":4096,"size":512,"zeroOut":true,"context":"AQ=="}],
        "nextOffset":"7","volumeSize":8192,"timeout":9}"#;
    let context = Some("AQ==".into());
    let block = Block { offset: 4096, len: 512, zero: true, context, implied: false };
    let page = Page {
        next: Some("7".into()),
        volume_bytes: Some(8192),
        expiry: Some(9),
        blocks: 1,
        ..Page::default()
    };
    for json in [
        plain.to_owned(),
        plain.replace("changeBlockList", "ChangeBlockList").replace("offset", "Offset"),
        plain.replace("changeBlockList", "changed_blocks").replace("\"7\"", "7"),
        plain.replace("8192", "\"8192\"").replace("4096", "\"4096\"").replace("size", "sizeBytes"),
        plain.replace("nextOffset", "nextOffSet").replace("volumeSize", "volume_size_bytes"),
        plain.replace("zeroOut", "zero-out").replace("\"offset", "\"byte_offset"),
        plain.replace("\"timeout\"", "\"extra\":[{}],\"Timeout\""),
    ] {
        assert_eq!(read(&json), Ok((page_of(&page), vec![block.clone()])), "{json}");
    }
}

fn page_of(p: &Page) -> Page {
    Page { next: p.next.clone(), error: p.error.clone(), ..*p }
}

#[test]
fn the_end_is_a_next_offset_that_is_absent_null_or_empty() {
    for json in [
        r#"{"changedBlockList":null}"#,
        r#"{"changedBlockList":[],"nextOffset":null}"#,
        r#"{"changedBlockList":[],"NextOffset":"","timeout":0,"volumeSize":0}"#,
    ] {
        assert_eq!(read(json), Ok((Page::default(), vec![])), "{json}");
    }
}

#[test]
fn what_cannot_be_understood_is_refused() {
    for (json, what) in [
        ("[]", "invalid type"),
        ("{}", "no list of blocks"),
        (r#"{"items":[]}"#, "no list of blocks"),
        (r#"{"changedBlocks":[],"changed_blocks":[]}"#, "twice"),
        (r#"{"changedBlocks":[{"size":1,"Size":1}]}"#, "size is given twice"),
        (r#"{"changedBlocks":[{"offset":1}]}"#, "has no size"),
        (r#"{"changedBlocks":[{"offset":-1,"size":1}]}"#, "invalid type"),
        (r#"{"changedBlocks":[{"offset":"1e3","size":1}]}"#, "\"1e3\""),
        (r#"{"changedBlocks":[{"offset":1.5,"size":1}]}"#, "invalid type"),
        (r#"{"changedBlocks":[{"offset":1,"size":1,"context":"%"}]}"#, "base64"),
        (r#"{"changedBlocks":[]"#, "EOF"),
        (r#"{"changedBlocks":[]} x"#, "trailing"),
    ] {
        let error = read(json).expect_err(json);
        assert!(error.contains(what), "{json}: {error}");
    }
    let stop = read_page(br#"{"changedBlocks":[{"size":1}]}"#, &mut |_| Err("no".into()));
    assert!(stop.unwrap_err().to_string().contains("block 1: no"));
}

#[test]
fn an_error_in_the_body_is_kept() {
    let (page, _) = read(r#"{"error":"the snapshot is gone"}"#).unwrap();
    assert_eq!(page.error.as_deref(), Some("the snapshot is gone"));
}

/// Each of them passed for an empty or a nearly empty list once.
#[test]
fn answers_of_another_dialect_are_refused() {
    for (json, what) in [
        (r#"{"changedBlocks":[{"Offset":null,"size":1}]}"#, "the offset of a block is null"),
        (r#"{"changedBlocks":[{"start":4096,"size":1}]}"#, "no offset, but \"start\""),
        (r#"{"changedBlocks":[{"size":1,"blockOffset":8}]}"#, "no offset, but \"blockOffset\""),
        (r#"{"volumeSize":8192}"#, "no list of blocks"),
        (r#"{"nextOffset":"7"}"#, "no list of blocks"),
        (r#"{"State":"Pending"}"#, "\"State\" is \"Pending\""),
        (r#"{"volumeSize":8192,"State":"Success"}"#, "no list of blocks"),
        (r#"{"changedBlocks":[],"State":"Pending"}"#, "\"State\" is \"Pending\""),
        (r#"{"changedBlocks":null,"State":"Success"}"#, "null beside a timeout or a state"),
        (r#"{"ChangeBlockList":null,"Timeout":1}"#, "null beside a timeout or a state"),
        (r#"{"changedBlocks":[],"Errors":["gone"]}"#, "\"Errors\""),
        (r#"{"changedBlocks":[],"ErrorMessage":"gone"}"#, "\"ErrorMessage\" is \"gone\""),
        (r#"{"changedBlocks":[],"nextPageToken":"x"}"#, "\"nextPageToken\" is \"x\""),
        (r#"{"changedBlocks":[],"next":{"offset":1}}"#, "\"next\""),
        (r#"{"changedBlocks":[],"metadata":{"continue":"x"}}"#, "\"continue\" is \"x\""),
        (r#"{"changedBlocks":[],"links":{"self":"a","next":"b"}}"#, "\"next\" is \"b\""),
        (r#"{"changedBlocks":[],"isTruncated":true}"#, "\"isTruncated\" is true"),
        (r#"{"changedBlocks":[],"total":"x"}"#, "total is \"x\""),
        (r#"{"changedBlocks":[],"@odata.nextLink":"x"}"#, "\"@odata.nextLink\" is \"x\""),
        (r#"{"changedBlocks":[],"links":[{"rel":"next","href":"x"}]}"#, "a link to a next page"),
        (r#"{"changedBlocks":[],"pages":[{"more":true}]}"#, "\"more\" is true"),
        (r#"{"changedBlocks":[],"moreBlocks":true}"#, "\"moreBlocks\" is true"),
        (r#"{"changedBlocks":[],"complete":false}"#, "\"complete\" is false"),
        (r#"{"changedBlocks":null,"isLast":false}"#, "\"isLast\" is false"),
        (r#"{"changedBlocks":[],"success":"false"}"#, "\"success\" is \"false\""),
        (r#"{"changedBlocks":[],"failed":true}"#, "\"failed\" is true"),
        (r#"{"changedBlocks":[],"phase":"Pending"}"#, "\"phase\" is \"Pending\""),
        (r#"{"changedBlocks":[],"jobStatus":"Running"}"#, "\"jobStatus\" is \"Running\""),
        (r#"{"changedBlocks":[],"discarded":[{"offset":0,"size":8}]}"#, "ranges in a list"),
    ] {
        let error = read(json).expect_err(json);
        assert!(error.contains(what), "{json}: {error}");
    }
}

#[test]
fn what_go_writes_of_an_empty_structure_is_an_empty_list() {
    for json in [
        r#"{"ChangeBlockList":null,"NextOffset":"","VolumeSize":8192,"Timeout":0}"#,
        r#"{"changedBlocks":[],"Timeout":9,"State":"Success","errors":[],"nextPage":null}"#,
        r#"{"changedBlocks":[],"status":200,"errorMessage":"","continue":"","state":""}"#,
        r#"{"changedBlocks":[],"metadata":{"continue":"","name":"x"},"hasMore":false}"#,
        r#"{"changedBlocks":[],"kind":"X","tags":["a"],"context":"y","phase":"Completed"}"#,
        r#"{"changedBlocks":[],"links":[{"rel":"self","href":"x"}],"complete":true,"last":true}"#,
    ] {
        let (page, blocks) = read(json).expect(json);
        assert!(page.next.is_none() && page.blocks == 0 && blocks.is_empty(), "{json}");
    }
    let (page, blocks) = read(r#"{"changedBlocks":[{"size":1}],"Total":"1"}"#).unwrap();
    assert!(page.total == Some(1) && blocks[0].implied && blocks[0].offset == 0);
}
