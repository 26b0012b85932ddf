# `cmake --install`: libraries, headers, the pkg-config file and the CMake package. Aliases.cmake lists the libraries.
include(CMakePackageConfigHelpers)

set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/spanalloc)
# Relative to the file itself, so that `cmake --install --prefix ELSEWHERE` works.
file(RELATIVE_PATH PREFIX_FROM_PKGCONFIG ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
if(_libraries)
  install(TARGETS ${_libraries} spanalloc_sp spanalloc_pages EXPORT spanallocTargets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  foreach(_target IN LISTS _libraries)
    get_property(_old TARGET ${_target} PROPERTY SPANALLOC_OLD_FILE)
    if(_old)
      install(FILES $<TARGET_FILE_DIR:${_target}>/${_old} DESTINATION ${CMAKE_INSTALL_LIBDIR})
    endif()
  endforeach()
  install(EXPORT spanallocTargets NAMESPACE spanalloc:: DESTINATION ${_package_dir})
  configure_package_config_file(cmake/spanallocConfig.cmake.in ${PROJECT_BINARY_DIR}/spanallocConfig.cmake
                                INSTALL_DESTINATION ${_package_dir})
  # Before 1.0 a minor version may give targets another name (CHANGELOG.md).
  set(_compatibility SameMajorVersion)
  if(PROJECT_VERSION_MAJOR EQUAL 0)
    set(_compatibility SameMinorVersion)
  endif()
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/spanallocConfigVersion.cmake COMPATIBILITY ${_compatibility})
  install(FILES ${PROJECT_BINARY_DIR}/spanallocConfig.cmake ${PROJECT_BINARY_DIR}/spanallocConfigVersion.cmake
          DESTINATION ${_package_dir})
  configure_file(cmake/spanalloc.pc.in ${PROJECT_BINARY_DIR}/spanalloc.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/spanalloc.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

# gdb's commands stand beside the command's package; a file beside each shared library leads gdb to them.
if(_libraries AND TARGET spanalloc_measure)
  set(_gdb_dir ${CMAKE_INSTALL_LIBEXECDIR}/spanalloc/gdb)
  install(FILES scripts/gdb/spanalloc.py DESTINATION ${_gdb_dir})
  file(RELATIVE_PATH GDB_FROM_LIBRARY ${CMAKE_INSTALL_FULL_LIBDIR} ${CMAKE_INSTALL_FULL_LIBEXECDIR}/spanalloc/gdb)
  configure_file(scripts/gdb/auto_load.py.in ${PROJECT_BINARY_DIR}/auto_load.py @ONLY)
  foreach(_target IN LISTS _libraries)
    get_property(_type TARGET ${_target} PROPERTY TYPE)
    if(_type STREQUAL SHARED_LIBRARY)
      install(FILES ${PROJECT_BINARY_DIR}/auto_load.py DESTINATION ${CMAKE_INSTALL_LIBDIR}
              RENAME $<TARGET_FILE_NAME:${_target}>-gdb.py)
    endif()
  endforeach()
endif()

# Only the sp_ functions, for use beside another malloc; only the page manager, for use without a C library.
if(NOT _libraries)
  install(TARGETS spanalloc_sp spanalloc_pages ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
foreach(_package IN ITEMS spanalloc-sp spanalloc-pages)
  configure_file(cmake/${_package}.pc.in ${PROJECT_BINARY_DIR}/${_package}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${_package}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

install(DIRECTORY include/spanalloc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
file(GLOB _man_pages_1 CONFIGURE_DEPENDS docs/man/*.1)
file(GLOB _man_pages_3 CONFIGURE_DEPENDS docs/man/*.3)
file(GLOB _man_pages_7 CONFIGURE_DEPENDS docs/man/*.7)
foreach(_section IN ITEMS 1 3 7)
  if(_man_pages_${_section})
    install(FILES ${_man_pages_${_section}} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${_section})
  endif()
endforeach()

# The target spanalloc_installed builds what is installed. The script is the first that installing runs (CMakeLists.txt):
# else it would end at the first file that is missing, with half of the others in place.
add_custom_target(spanalloc_installed)
set(_check "")
foreach(_target IN LISTS _libraries ITEMS spanalloc_pages spanalloc_sp spanalloc_measure spanalloc_probe)
  if(NOT TARGET ${_target}) # the command's, where another project embeds this one
    continue()
  endif()
  add_dependencies(spanalloc_installed ${_target})
  string(APPEND _check
"if(NOT EXISTS [==[$<TARGET_FILE:${_target}>]==])
  message(FATAL_ERROR [==[$<TARGET_FILE:${_target}> is not built, nothing is installed. First: cmake --build ${PROJECT_BINARY_DIR} --target spanalloc_installed]==])
endif()
")
endforeach()
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/InstallCheck-$<CONFIG>.cmake CONTENT "${_check}")
