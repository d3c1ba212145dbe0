//! Requests to the APIs of the files in `config/`: each has the route, and with it the limiters, of its kind.

use std::process::Command;

use serde_json::Value;

/// Explains a request by a file in `config/`.
fn explained(file: &str, (method, url): (&str, &str), rest: &[&str]) -> Value {
    let path = format!("{}/config/{file}.yaml", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    for needed in [
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "AZURE_OPENAI_NAME",
        "AZURE_OPENAI_KEY",
        "BEDROCK_API_KEY",
        "GEMINI_API_KEY",
    ] {
        command.env(needed, "some");
    }
    let asked = command.args(["explain", method, url, "--json", "--config", &path]).args(rest);
    let output = asked.output().expect("it runs");
    let told = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}"))
}

/// Asserts the names of the limiters that a request takes permits from.
fn assert_limiters(file: &str, request: (&str, &str), expected: &[&str]) {
    let told = explained(file, request, &["-d", "{}"]);
    let limiters = told["limiters"].as_array().expect("limiters").iter();
    let names: Vec<_> = limiters.map(|limiter| limiter["limiter"].as_str().expect("a name")).collect();
    assert_eq!(names, expected, "{request:?}: {told}");
}

#[test]
fn files_and_batches_take_no_tokens() {
    for (file, prefix) in
        [("openai", "/openai/v1"), ("azure-openai", "/azure/openai"), ("azure-openai", "/azure/openai/v1")]
    {
        let of_files = if file == "openai" { "openai-files" } else { "azure-files" };
        for path in [
            "/files",
            "/files/file-1/content",
            "/uploads/upload_1/parts",
            "/containers/c/files",
            "/batches",
            "/batches/batch_1",
        ] {
            assert_limiters(file, ("POST", &format!("{prefix}{path}")), &[of_files]);
        }
    }
    assert_limiters("openai", ("POST", "/openai/v1/responses"), &["openai-requests", "openai-tokens"]);
    let chat = "/azure/openai/deployments/a/chat/completions";
    assert_limiters("azure-openai", ("POST", chat), &["azure-requests", "azure-tokens"]);
    assert_limiters("anthropic", ("POST", "/anthropic/v1/files"), &["anthropic-files"]);
    assert_limiters("anthropic", ("POST", "/anthropic/v1/messages/batches/b"), &["anthropic-batches"]);
}

#[test]
fn each_model_of_bedrock_has_a_partition_also_if_an_arn_names_it() {
    let arn = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc";
    for (sent, model) in [
        ("anthropic.claude-sonnet-4-20250514-v1%3A0/converse", "anthropic.claude-sonnet-4-20250514-v1:0"),
        ("amazon.nova-pro-v1:0/invoke-with-response-stream", "amazon.nova-pro-v1:0"),
        (
            "arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Aapplication-inference-profile%2Fabc/converse",
            arn,
        ),
        ("arn:aws:bedrock:us-east-1:123456789012:application-inference-profile%2Fabc/converse-stream", arn),
    ] {
        let told = explained("bedrock", ("POST", &format!("/bedrock/model/{sent}")), &["-d", "{}"]);
        let partition = &told["limiters"][0]["partition"];
        let values: Vec<_> = partition.as_object().into_iter().flatten().map(|(_, value)| value).collect();
        assert_eq!(values, [model], "{sent}: {told}");
    }
}

#[test]
fn an_interaction_of_gemini_has_the_model_of_its_body() {
    let interactions = ["gemini-interactions", "gemini-interactions-input"];
    assert_limiters("gemini", ("POST", "/gemini/v1beta/interactions"), &interactions);
    assert_limiters("gemini", ("GET", "/gemini/v1beta/interactions/v1_abc"), &interactions);
    let body = format!(
        r#"{{"model": "gemini-3-pro", "input": "{}", "system_instruction": "short"}}"#,
        "x".repeat(3000)
    );
    let told = explained("gemini", ("POST", "/gemini/v1beta/interactions"), &["-d", &body]);
    let [requests, input] = [0, 1].map(|place| &told["limiters"][place]);
    assert_eq!(
        (&requests["partition"]["json:model"], &requests["cost"]),
        (&"gemini-3-pro".into(), &1.into())
    );
    assert_eq!(input["cost"], 1002, "{told}");
    let body =
        format!(r#"{{"model": "gemini-3-pro", "messages": "{}", "tools": ["short"]}}"#, "x".repeat(3000));
    let told = explained("gemini", ("POST", "/gemini/v1beta/openai/chat/completions"), &["-d", &body]);
    let input = &told["limiters"][1];
    assert_eq!(
        (&input["limiter"], &input["partition"]["json:model"], &input["cost"]),
        (&"gemini-interactions-input".into(), &"gemini-3-pro".into(), &1002.into()),
        "{told}"
    );
    let generating = ("POST", "/gemini/v1beta/models/gemini-3-pro:generateContent");
    assert_limiters("gemini", generating, &["gemini-requests", "gemini-input"]);
}

#[test]
fn counting_tokens_is_not_generating() {
    for (request, limiter) in [
        ("/gemini/v1beta/models/gemini-3-pro:countTokens", "gemini-others"),
        ("/gemini/v1beta/models/gemini-3-pro:batchGenerateContent", "gemini-others"),
        ("/gemini/v1beta/batches/b", "gemini-others"),
        ("/gemini/upload/v1beta/files", "gemini-others"),
        ("/gemini/upload/v1beta/fileSearchStores/some:uploadToFileSearchStore", "gemini-others"),
        ("/bedrock/model/anthropic.claude-sonnet-4-20250514-v1%3A0/count-tokens", "bedrock-count"),
        (
            "/bedrock/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A1%3Aapplication-inference-profile%2Fabc/count-tokens",
            "bedrock-count",
        ),
        ("/anthropic/v1/messages/count_tokens", "anthropic-count"),
    ] {
        let file = request.split('/').nth(1).expect("a file");
        assert_limiters(file, ("POST", request), &[limiter]);
    }
    let generating = [
        "gemini/v1beta/models/gemini-3-pro:streamGenerateContent",
        "gemini/v1beta/models/gemini-embedding-001:batchEmbedContents",
        "bedrock/model/amazon.nova-pro-v1%3A0/converse",
    ];
    for (path, file) in generating.map(|path| (path, path.split('/').next().expect("a file"))) {
        let of_tokens = if file == "gemini" { "gemini-input" } else { "bedrock-tokens" };
        assert_limiters(file, ("POST", &format!("/{path}")), &[&format!("{file}-requests"), of_tokens]);
    }
}

#[test]
fn each_call_to_youtube_takes_from_the_quota_that_counts_it() {
    let units = ["youtube-pace", "youtube-team", "youtube-project"];
    for (request, limiters) in [
        (("GET", "/youtube/v3/search?q=a"), &["youtube-pace", "youtube-searches"][..]),
        (("POST", "/upload/youtube/v3/videos?uploadType=resumable"), &["youtube-pace", "youtube-videos"]),
        (("PUT", "/upload/youtube/v3/videos?upload_id=1"), &units),
        (("GET", "/youtube/v3/videos?id=1"), &units),
        (("POST", "/upload/youtube/v3/captions"), &units),
    ] {
        assert_limiters("youtube", request, limiters);
    }
    for cost in ["400", "450"] {
        let header = format!("weir-cost: {cost}");
        let told = explained("youtube", ("PUT", "/youtube/v3/captions"), &["-d", "{}", "-H", &header]);
        assert_eq!(told["limiters"][0]["cost"].to_string(), cost, "{told}");
    }
}
