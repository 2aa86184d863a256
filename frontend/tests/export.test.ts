import { afterEach, expect, test } from 'vitest'

import { Files, scriptOf } from '../src/wire'

afterEach(() => { globalThis.RHEOSCOPE_FILES = undefined })

test('what heads and tokens are asked for stands in scripts of their own', () => {
  expect(scriptOf('api/traces/ab/weights/3/1.bin')).toBe('data/layer-3.js')
  expect(scriptOf('api/traces/ab/weights/3/1.reversed.bin')).toBe('data/layer-3.js')
  expect(scriptOf('api/traces/ab/token/7.json')).toBe('data/tokens.js')
  expect(scriptOf('api/traces/ab/analyses/transport.bin')).toBe('data.js')
})

test('a script is read once, and what it does not hold is told', async () => {
  const read: string[] = []
  const files = new Files(() => 'not in this export', (script) => {
    read.push(script)
    globalThis.RHEOSCOPE_FILES = { ...globalThis.RHEOSCOPE_FILES, [`api/${script}.json`]: btoa('{}') }
    return Promise.resolve(true)
  })
  await expect(files.read('api/state', {}, 'json')).rejects.toThrow('not in this export')
  expect(new TextDecoder().decode(await files.read('api/data.js', {}, 'json'))).toBe('{}')
  await expect(files.read('api/traces/ab/weights/3/1', {}, 'bin')).rejects.toThrow('not in this export')
  expect(read).toEqual(['data.js', 'data/layer-3.js'])
})
