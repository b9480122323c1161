"""Files of the slow tier: whole models, campaigns, kernels that take seconds to compile.

Those of more than 8 s in all, and 0.7 s a test, of worker time on two cores (an Intel Xeon that
others share, 2026-11-29): 731 tests of 4,803, and 1,223 s of 2,323.
"""

SLOW_FILES = frozenset(
    (
        "test_calibration", "test_campaign_found", "test_campaign_slice", "test_channels",
        "test_complex_models", "test_depthwise_triton", "test_distributed", "test_experts",
        "test_fuzz", "test_generate", "test_generate_caches", "test_gluon_products",
        "test_growth_steps", "test_howto", "test_interpolation", "test_lowering_models",
        "test_memory_budget", "test_odd_rows_kernel", "test_operators_triton", "test_optimisers",
        "test_plan_elsewhere", "test_planned_peaks", "test_recurrent", "test_repeated",
        "test_repeated_layers", "test_report_zoo", "test_residual_stream",
        "test_running_extremes", "test_running_log_sums", "test_score_nests", "test_softmaxes",
        "test_total_losses", "test_training", "test_triton_attention", "test_triton_meaning",
        "test_triton_nest", "test_triton_runs", "test_turned_rows", "test_widened",
    )
)  # fmt: skip
