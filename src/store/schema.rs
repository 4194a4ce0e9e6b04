//! Tables as diesel sees them: one description for both databases (RUL-20: ids and JSON are text, times are UTC
//! without zone, integers are 64 bits). `tests/store/schema.rs` compares it with what the migrations really build.
//!
//! `diesel print-schema` is not used: it would write dialect types. A column goes here in the commit of its migration.

diesel::table! {
    accounts (id) {
        id -> Text,
        email -> Nullable<Text>,
        email_verified_at -> Nullable<Timestamp>,
        is_admin -> Bool,
        comped -> Bool,
        sandbox_limit_override -> Nullable<BigInt>,
        suspended_at -> Nullable<Timestamp>,
        deleting_at -> Nullable<Timestamp>,
        inserted_at -> Timestamp,
        updated_at -> Timestamp,
        credit_balance -> BigInt,
    }
}

diesel::table! {
    data_keys (account_id) {
        account_id -> Text,
        wrapped_key -> Binary,
        nonce -> Binary,
        inserted_at -> Timestamp,
    }
}

diesel::table! {
    api_keys (id) {
        id -> Text,
        account_id -> Text,
        name -> Text,
        prefix -> Text,
        sha256 -> Binary,
        scope -> Text,
        conversation_id -> Nullable<Text>,
        runner_name -> Nullable<Text>,
        expires_at -> Nullable<Timestamp>,
        revoked_at -> Nullable<Timestamp>,
        last_used_at -> Nullable<Timestamp>,
        inserted_at -> Timestamp,
    }
}

diesel::table! {
    environments (id) {
        id -> Text,
        account_id -> Text,
        name -> Text,
        packages -> Text,
        env_vars -> Text,
        setup_script -> Text,
        setup_timeout_seconds -> BigInt,
        networking_type -> Text,
        networking_config -> Text,
        repositories -> Text,
        metadata -> Text,
        checkpoint -> Nullable<Text>,
        inserted_at -> Timestamp,
        updated_at -> Timestamp,
    }
}

diesel::table! {
    vaults (id) {
        id -> Text,
        account_id -> Text,
        name -> Text,
        description -> Text,
        metadata -> Text,
        inserted_at -> Timestamp,
        updated_at -> Timestamp,
    }
}

diesel::table! {
    secrets (id) {
        id -> Text,
        account_id -> Text,
        environment_id -> Nullable<Text>,
        vault_id -> Nullable<Text>,
        key -> Text,
        sealed -> Binary,
        nonce -> Binary,
        expires_at -> Nullable<Timestamp>,
        inserted_at -> Timestamp,
        updated_at -> Timestamp,
    }
}

diesel::table! {
    agents (id) {
        id -> Text,
        account_id -> Text,
        name -> Text,
        runtime -> Text,
        environment_id -> Nullable<Text>,
        version_id -> Text,
        version -> BigInt,
        config -> Text,
        inserted_at -> Timestamp,
        updated_at -> Timestamp,
    }
}

diesel::table! {
    agent_versions (id) {
        id -> Text,
        account_id -> Text,
        agent_id -> Text,
        version -> BigInt,
        config -> Text,
        inserted_at -> Timestamp,
    }
}

diesel::table! {
    runners (id) {
        id -> Text,
        account_id -> Text,
        name -> Text,
        hostname -> Nullable<Text>,
        os -> Nullable<Text>,
        arch -> Nullable<Text>,
        version -> Nullable<Text>,
        root -> Nullable<Text>,
        root_id -> Nullable<Text>,
        features -> Text,
        connected_at -> Nullable<Timestamp>,
        last_seen_at -> Nullable<Timestamp>,
        forgotten_at -> Nullable<Timestamp>,
        inserted_at -> Timestamp,
    }
}

diesel::table! {
    machines (id) {
        id -> Text,
        account_id -> Nullable<Text>,
        name -> Text,
        status -> Text,
        mode -> Text,
        runtime -> Nullable<Text>,
        provider -> Text,
        provider_meta -> Text,
        provider_instance_id -> Nullable<Text>,
        transition -> Nullable<Text>,
        transition_reason -> Nullable<Text>,
        transition_at -> Nullable<Timestamp>,
        lease_epoch -> BigInt,
        lease_holder -> Nullable<Text>,
        lease_until -> Nullable<Timestamp>,
        woken_at -> Nullable<Timestamp>,
        cleanup_pending -> Bool,
        next_attempt_at -> Nullable<Timestamp>,
        attempts -> BigInt,
        build_fingerprint -> Nullable<Text>,
        applied_skills -> Nullable<Text>,
        departed_conversations -> Text,
        agent_id -> Nullable<Text>,
        environment_id -> Nullable<Text>,
        vault_id -> Nullable<Text>,
        last_resumed_at -> Nullable<Timestamp>,
        terminated_at -> Nullable<Timestamp>,
        inserted_at -> Timestamp,
        updated_at -> Timestamp,
    }
}

diesel::table! {
    conversations (id) {
        id -> Text,
        account_id -> Text,
        status -> Text,
        runtime -> Text,
        configuration_revision -> BigInt,
        runtime_session_id -> Nullable<Text>,
        machine_id -> Text,
        agent_id -> Nullable<Text>,
        agent_version_id -> Nullable<Text>,
        vault_id -> Nullable<Text>,
        environment_id -> Nullable<Text>,
        parent_conversation_id -> Nullable<Text>,
        source -> Text,
        channel_id -> Nullable<Text>,
        title -> Nullable<Text>,
        labels -> Text,
        model -> Nullable<Text>,
        sandbox_api_access -> Text,
        permission_policy -> Nullable<Text>,
        callback_key_id -> Nullable<Text>,
        server_epoch -> BigInt,
        output_bytes -> BigInt,
        usage_input_tokens -> BigInt,
        usage_output_tokens -> BigInt,
        last_active_at -> Nullable<Timestamp>,
        last_read_at -> Nullable<Timestamp>,
        inserted_at -> Timestamp,
        updated_at -> Timestamp,
        queue_request_id -> Nullable<Text>,
    }
}

diesel::table! {
    turns (id) {
        id -> Text,
        account_id -> Text,
        conversation_id -> Text,
        machine_id -> Nullable<Text>,
        number -> BigInt,
        prompt -> Text,
        origin -> Text,
        client_request_id -> Nullable<Text>,
        status -> Text,
        started_at -> Nullable<Timestamp>,
        ended_at -> Nullable<Timestamp>,
        exit_code -> Nullable<BigInt>,
        limit_reason -> Nullable<Text>,
        orphaned_at -> Nullable<Timestamp>,
        acp_prompt_id -> Nullable<BigInt>,
        spawn_id -> Nullable<Text>,
        pending_permission -> Nullable<Text>,
        permission_deadline -> Nullable<Timestamp>,
        waiting -> Bool,
        pending_until -> Nullable<Timestamp>,
        reattach_deadline -> Nullable<Timestamp>,
        reattach_first_loss -> Nullable<Timestamp>,
        usage -> Nullable<Text>,
        model_selection -> Nullable<Text>,
        reply_text -> Nullable<Text>,
        image_count -> BigInt,
        inserted_at -> Timestamp,
    }
}

diesel::table! {
    turn_images (turn_id, position) {
        turn_id -> Text,
        position -> BigInt,
        media_type -> Text,
        bytes -> Binary,
    }
}

diesel::table! {
    processes (id) {
        id -> Text,
        account_id -> Text,
        conversation_id -> Text,
        machine_id -> Text,
        spawn_id -> Text,
        session_id -> Nullable<Text>,
        stdout_consumed -> BigInt,
        stdout_digest -> Nullable<Text>,
        stderr_consumed -> BigInt,
        stderr_digest -> Nullable<Text>,
        stop_requested -> Bool,
        ended_at -> Nullable<Timestamp>,
        inserted_at -> Timestamp,
    }
}

diesel::table! {
    log_events (id) {
        id -> BigInt,
        account_id -> Text,
        conversation_id -> Text,
        turn_id -> Nullable<Text>,
        kind -> Text,
        stream -> Nullable<Text>,
        data -> Text,
        stage -> Nullable<Text>,
        state -> Nullable<Text>,
        duration_ms -> Nullable<BigInt>,
        process_id -> Nullable<Text>,
        raw_stream -> Nullable<Text>,
        raw_from -> Nullable<BigInt>,
        raw_to -> Nullable<BigInt>,
        gap_stream -> Nullable<Text>,
        gap_from -> Nullable<BigInt>,
        gap_to -> Nullable<BigInt>,
        inserted_at -> Timestamp,
    }
}

diesel::table! {
    operations (id) {
        id -> Text,
        account_id -> Nullable<Text>,
        machine_id -> Text,
        machine_name -> Text,
        verb -> Text,
        reason -> Nullable<Text>,
        actor -> Text,
        epoch -> BigInt,
        started_at -> Timestamp,
        finished_at -> Nullable<Timestamp>,
        outcome -> Nullable<Text>,
        provider_call -> Nullable<Text>,
        provider_answer -> Nullable<Text>,
        evidence -> Nullable<Text>,
        lease_until -> Nullable<Timestamp>,
        probed_at -> Nullable<Timestamp>,
        settled_at -> Nullable<Timestamp>,
        closed_at -> Nullable<Timestamp>,
        next_attempt_at -> Nullable<Timestamp>,
    }
}

diesel::table! {
    audit_events (id) {
        id -> BigInt,
        account_id -> Nullable<Text>,
        action -> Text,
        resource_type -> Text,
        resource_id -> Nullable<Text>,
        actor -> Text,
        request_ip -> Nullable<Text>,
        metadata -> Text,
        inserted_at -> Timestamp,
    }
}

diesel::table! {
    usage_events (id) {
        id -> BigInt,
        account_id -> Nullable<Text>,
        kind -> Text,
        machine_id -> Nullable<Text>,
        conversation_id -> Nullable<Text>,
        turn_id -> Nullable<Text>,
        provider -> Nullable<Text>,
        metadata -> Text,
        inserted_at -> Timestamp,
    }
}

diesel::table! {
    untracked_machines (provider, name) {
        provider -> Text,
        name -> Text,
        first_seen -> Timestamp,
        last_seen -> Timestamp,
    }
}

diesel::table! {
    distrusted_checkpoints (address) {
        address -> Text,
        until -> Timestamp,
    }
}

diesel::table! {
    pass_leases (name) {
        name -> Text,
        holder -> Nullable<Text>,
        epoch -> BigInt,
        until -> Nullable<Timestamp>,
    }
}

diesel::table! {
    replicas (holder) {
        holder -> Text,
        url -> Text,
        heartbeat -> Timestamp,
        draining -> Bool,
    }
}

diesel::table! {
    actor_homes (kind, id) {
        kind -> Text,
        id -> Text,
        holder -> Text,
        generation -> BigInt,
    }
}

diesel::table! {
    credit_ledger (id) {
        id -> BigInt,
        account_id -> Text,
        kind -> Text,
        amount -> BigInt,
        reference -> Text,
        expires_at -> Nullable<Timestamp>,
        note -> Nullable<Text>,
        inserted_at -> Timestamp,
    }
}

diesel::table! {
    credit_marks (name) {
        name -> Text,
        since -> Timestamp,
        usage_id -> BigInt,
    }
}

diesel::table! {
    sandbox_requests (id) {
        id -> Text,
        account_id -> Text,
        agent_id -> Text,
        kind -> Text,
        status -> Text,
        source -> Text,
        schedule_id -> Nullable<Text>,
        launch -> Nullable<Text>,
        conversation_id -> Nullable<Text>,
        error -> Nullable<Text>,
        inserted_at -> Timestamp,
        updated_at -> Timestamp,
    }
}

diesel::table! {
    schedules (id) {
        id -> Text,
        account_id -> Text,
        agent_id -> Text,
        name -> Nullable<Text>,
        cron -> Text,
        prompt -> Text,
        one_off -> Bool,
        enabled -> Bool,
        next_run_at -> Nullable<Timestamp>,
        last_run_at -> Nullable<Timestamp>,
        last_conversation_id -> Nullable<Text>,
        last_error -> Nullable<Text>,
        firing_at -> Nullable<Timestamp>,
        firing_since -> Nullable<Timestamp>,
        firing_not_before -> Nullable<Timestamp>,
        inserted_at -> Timestamp,
        updated_at -> Timestamp,
    }
}

diesel::joinable!(agents -> environments (environment_id));
diesel::joinable!(api_keys -> accounts (account_id));
diesel::joinable!(conversations -> machines (machine_id));
diesel::joinable!(processes -> conversations (conversation_id));
diesel::joinable!(turns -> conversations (conversation_id));

diesel::allow_tables_to_appear_in_same_query!(
    accounts,
    actor_homes,
    agent_versions,
    agents,
    api_keys,
    audit_events,
    conversations,
    credit_ledger,
    credit_marks,
    data_keys,
    distrusted_checkpoints,
    environments,
    log_events,
    machines,
    operations,
    pass_leases,
    processes,
    replicas,
    runners,
    sandbox_requests,
    schedules,
    secrets,
    turn_images,
    turns,
    untracked_machines,
    usage_events,
    vaults,
);
