import { afterEach, expect, test } from 'vitest'

import { ExportedFiles, exportScript } from '../src/api'

afterEach(() => { globalThis.RHEOSCOPE_FILES = undefined })

test('keeps files of heads and tokens in separate scripts', () => {
  expect(exportScript('api/traces/ab/weights/3/1.bin')).toBe('data/layer-3.js')
  expect(exportScript('api/traces/ab/weights/3/1.reversed.bin')).toBe('data/layer-3.js')
  expect(exportScript('api/traces/ab/token/7.json')).toBe('data/tokens.js')
  expect(exportScript('api/cards/default.json')).toBe('data/card.js')
  expect(exportScript('api/traces/ab/analyses/transport.bin')).toBe('data.js')
})

test('loads a script once and reports a missing file', async () => {
  const loadedScripts: string[] = []
  const files = new ExportedFiles((script) => {
    loadedScripts.push(script)
    globalThis.RHEOSCOPE_FILES = { ...globalThis.RHEOSCOPE_FILES, [`api/${script}.json`]: btoa('{}') }
    return Promise.resolve(true)
  })
  await expect(files.read('api/state', {}, 'json')).rejects.toThrow('rheoscope studio')
  expect(new TextDecoder().decode(await files.read('api/data.js', {}, 'json'))).toBe('{}')
  await expect(files.read('api/traces/ab/weights/3/1', {}, 'bin')).rejects.toThrow('rheoscope studio')
  expect(loadedScripts).toEqual(['data.js', 'data/layer-3.js'])
})
