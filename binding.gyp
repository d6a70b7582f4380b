{
  # node-gyp and prebuildify come through here; the build itself is CMake's (CMakeLists.txt).
  'targets': [
    {
      'target_name': 'warpgrad',
      'type': 'none',
      'actions': [
        {
          'action_name': 'cmake',
          'inputs': ['scripts/build-native.cjs'],
          # Never written, so that the action always runs: CMake decides what is out of date.
          'outputs': ['<(PRODUCT_DIR)/always-run'],
          'action': ['node', 'scripts/build-native.cjs', '--out', '<(PRODUCT_DIR)'],
        },
      ],
    },
  ],
}
